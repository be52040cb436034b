"""Trains the rubric generator with TRL's GRPOTrainer on response sets with ranked anchors."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from openrlhf_dynamicrubric.errors import ConfigError, DataError, UnscorableRunError
from openrlhf_dynamicrubric.evaluator import EvaluatorConfig
from openrlhf_dynamicrubric.generator import generator_prompt
from openrlhf_dynamicrubric.llm.base import LanguageModel
from openrlhf_dynamicrubric.llm.embedded import resolve_model
from openrlhf_dynamicrubric.llm.transformers_chat import ChatEncoder
from openrlhf_dynamicrubric.parsing import rubric_schema
from openrlhf_dynamicrubric.records import RecordFile
from openrlhf_dynamicrubric.text import encodable, neutralise
from openrlhf_dynamicrubric.trl.checks import check_enough_prompts, check_generator_args, read_response_rows
from openrlhf_dynamicrubric.trl.contract import check_trl
from openrlhf_dynamicrubric.trl.groups import on_all_ranks, rank_and_size
from openrlhf_dynamicrubric.trl.judges import check_judge, judge_name, make_evaluator, run_judges
from openrlhf_dynamicrubric.trl.rubric_rewards import (
    SampledRubric,
    judge_sampled,
    read_sampled,
    reward_columns,
    rubric_metrics,
    rubric_record,
)
from openrlhf_dynamicrubric.trl.sampling import constrain_vllm, constrained_generate
from openrlhf_dynamicrubric.types import FloatArray, ResponseSet

_LONGEST = 32
"""Prompts that are measured before training: those of most bytes."""

Rows = Dataset | Iterable[Mapping[str, Any] | ResponseSet]


def discriminability(**_: Any) -> list[float | None]:
    """Name of the first reward in TRL's logs; the trainer computes both rewards itself."""
    raise NotImplementedError("RubricGeneratorTrainer computes its rewards in _calculate_rewards")


def anchor_ranking(**_: Any) -> list[float | None]:
    """Name of the second reward in TRL's logs."""
    raise NotImplementedError("RubricGeneratorTrainer computes its rewards in _calculate_rewards")


class RubricGeneratorTrainer(GRPOTrainer):
    """GRPO on rubrics: G rubrics are sampled for each response set, and judged on its responses and anchors.

    A_g = z_g(R_disc) + lambda z_g(R_anchor)

    Source: DynamicRubric (arXiv:2607.20083), the generator's objective.
    Ours: a text that is no valid rubric, or was cut off, earns R_disc = 0 and `objectives.anchor_ranking_floor`; a rubric that
    could not be judged because calls failed earns nothing: it is left out of its group's baseline and has no advantage.

    Overrides `_calculate_rewards` (rewards standardised per group over all ranks before they are summed, which no option of TRL
    does), `_tokenize_prompts` (control tokens inside a response stay text, as in policy scoring) and `_generate_single_turn`
    (the JSON schema while sampling). Under the schema rubrics are sampled from the masked distribution, while the loss uses the
    model's own probabilities, so that it learns to need the mask less.
    An entropy bonus, which keeps rubrics from collapsing onto a few items, is TRL's `entropy_coef`.

    Args:
        model: the generator to train: a folder, a hub name, `embedded`, or a loaded model.
        args: TRL's options; num_generations is G. `scale_rewards` becomes "none".
        train_dataset: rows with `prompt`, `responses` (2 or more), `anchors` (2 or more, best first) and, if wanted, `id`.
        eval_dataset: likewise.
        config: evaluator options; the generator named there is not used, `model` is trained.
        verifier: DR-Verifier, a name, a folder or a language model, in place of the one that `config` names.
        anchor_weight: lambda, at least 0. Paper: 1.
        use_discriminability: False is the ablation without R_disc.
        std_floor: smallest standard deviation that rewards are divided by, see `objectives.standardise`.
        records: folder that gets rubrics.jsonl; None writes nothing.
        max_unscorable_steps: steps in a row in which calls failed for every rubric, after which training stops; 0: never.
        **trainer_options: processing_class, callbacks, optimizers, peft_config, quantization_config of GRPOTrainer.

    Raises:
        ConfigError: options that cannot work together.
        DataError: a row is not as it must be, or there are too few for one step.
        ModelLoadError: the verifier cannot be loaded, or the generator has no chat template.
        MissingDependencyError: another version of TRL than this was made for.
        UnscorableRunError: (while training) see `max_unscorable_steps`.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        *,
        args: GRPOConfig,
        train_dataset: Rows,
        eval_dataset: Rows | None = None,
        config: EvaluatorConfig | None = None,
        verifier: str | Path | LanguageModel | None = None,
        anchor_weight: float = 1.0,
        use_discriminability: bool = True,
        std_floor: float = 0.0,
        records: str | Path | None = None,
        max_unscorable_steps: int = 5,
        **trainer_options: Any,
    ) -> None:
        check_trl()
        self.config = config or EvaluatorConfig()
        if isinstance(verifier, str | Path):
            self.config, verifier = replace(self.config, verifier=str(verifier)), None
        _check_trainer_options(trainer_options)
        _check_objective(anchor_weight, use_discriminability, std_floor, max_unscorable_steps)
        self._set_schema(args)
        self.anchor_weight, self.use_discriminability, self.std_floor = anchor_weight, use_discriminability, std_floor
        self.max_unscorable_steps, self._unscorable_steps = max_unscorable_steps, 0
        names = {"generator": judge_name(model), "verifier": judge_name(verifier or self.config.verifier)}
        self.records = RecordFile(Path(records) / "rubrics.jsonl", **names) if records is not None else None
        sets = read_response_rows(train_dataset, "the training dataset")
        check_enough_prompts(len(sets), args)
        eval_sets = [] if eval_dataset is None else read_response_rows(eval_dataset, "the evaluation dataset")
        on_all_ranks(lambda: self._load_verifier(verifier))
        self.response_sets = [self.evaluator.prepare(one) for one in sets + eval_sets]
        chats = Dataset.from_list([{"prompt": self._chat(one), "row": n} for n, one in enumerate(self.response_sets)])
        super().__init__(
            model=resolve_model(str(model)) if isinstance(model, str | Path) else model,
            reward_funcs=[discriminability, anchor_ranking],
            args=args,
            train_dataset=chats.select(range(len(sets))),
            eval_dataset=chats.select(range(len(sets), len(chats))) if eval_sets else None,
            **trainer_options,
        )
        self._encoder = ChatEncoder(self._tokenizer, name="the generator")
        self._encoder.check_chat_template()
        self._check_lengths(chats["prompt"][:])

    def _set_schema(self, args: GRPOConfig) -> None:
        check_generator_args(args, self.config)
        self._schema = rubric_schema(max_items=self.config.max_items, max_criterion_chars=self.config.max_criterion_chars)
        self._processor: Any = None
        if self.config.constrained_rubrics and args.use_vllm:
            constrain_vllm(args, self._schema)

    def _load_verifier(self, verifier: LanguageModel | None) -> None:
        verifier = verifier and check_judge(verifier, "verifier")
        self.evaluator = make_evaluator(self.config, verifier=verifier, with_generator=False)

    def _chat(self, response_set: ResponseSet) -> list[dict[str, str]]:
        prompt = generator_prompt(
            response_set,
            max_items=self.config.max_items,
            max_response_chars=self.config.max_response_chars,
            seed=self.config.judge_seed,
            source=self.config.rubric_source,
        )
        return [dict(turn) for turn in prompt.messages]

    def _check_lengths(self, chats: Sequence[list[dict[str, str]]]) -> None:
        """The longest prompts leave room for a completion in what the model can read."""
        limit = getattr(self.accelerator.unwrap_model(self.model).config, "max_position_embeddings", None)
        if limit is None:
            return
        longest = heapq.nlargest(_LONGEST, range(len(chats)), key=lambda row: len(chats[row][0]["content"].encode()))
        token_ids, _, _ = self._tokenize_prompts([chats[row] for row in longest])
        for row, ids in zip(longest, token_ids, strict=True):
            if len(ids) + (self.max_completion_length or 0) > limit:
                raise DataError(
                    f"the generator's prompt for response set {self.response_sets[row].id!r} has {len(ids)} tokens, which with "
                    f"max_completion_length {self.max_completion_length} is more than the {limit} that the model can read; "
                    f"lower max_response_chars ({self.config.max_response_chars}) or max_completion_length"
                )

    def _tokenize_prompts(self, prompts: list[list[dict[str, str]]]) -> Any:
        # As the judges' backend does it: a control token inside a response is text, in training as in policy scoring.
        chats = [
            [{**turn, "content": neutralise(encodable(turn["content"]), self._encoder.special_tokens)} for turn in chat]
            for chat in prompts
        ]
        return super()._tokenize_prompts(chats)

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        with self._constraint():
            return super()._generate_single_turn(*args, **kwargs)

    def _constraint(self) -> Any:
        if not self.config.constrained_rubrics or self.use_vllm:
            return nullcontext()
        if self._processor is None:
            from openrlhf_dynamicrubric.llm.constrained import JsonSchemaProcessor, SchemaGuide

            self._processor = JsonSchemaProcessor(SchemaGuide(self._tokenizer, self._schema, self.eos_token_ids))
        return constrained_generate(self.accelerator.unwrap_model(self.model_wrapped), self._processor)

    def _calculate_rewards(
        self, inputs: list[dict[str, Any]], prompts: list[Any], completions: list[Any], completion_ids_list: list[list[int]]
    ) -> torch.Tensor:
        """Both terms of the advantage for every rubric of all ranks, shape (rubrics, 2)."""
        started = time.monotonic()
        mode = "train" if cast(PreTrainedModel, self.model).training else "eval"
        size = cast(int, self.num_generations if mode == "train" else self.num_generations_eval)
        by_rank = on_all_ranks(lambda: self._judge(inputs, completion_ids_list))
        sampled = [one for part in by_rank for one in part]
        disc = np.array([one.disc for one in sampled])
        anchor = np.array([one.anchor for one in sampled])
        columns = reward_columns(
            disc,
            anchor,
            size=size,
            anchor_weight=self.anchor_weight,
            use_discriminability=self.use_discriminability,
            std_floor=self.std_floor,
        )
        local = by_rank[rank_and_size()[0]]
        seconds = time.monotonic() - started
        on_all_ranks(lambda: self._report(sampled, local, columns.sum(axis=1), size, mode, seconds=seconds))
        self._stop_if_hopeless(sampled)
        return torch.tensor(columns, dtype=torch.float32, device=self.accelerator.device)

    def _judge(self, inputs: list[dict[str, Any]], completion_ids_list: list[list[int]]) -> list[SampledRubric]:
        sampled = [
            read_sampled(
                self.response_sets[row["row"]],
                str(self._tokenizer.decode(ids, skip_special_tokens=True)),
                tokens=len(ids),
                ended=ids[-1] in self.eos_token_ids,
                max_items=self.config.max_items,
            )
            for row, ids in zip(inputs, completion_ids_list, strict=True)
        ]
        return run_judges(judge_sampled(sampled, self.evaluator.verifier, verdict_threshold=self.config.verdict_threshold))

    def _report(
        self,
        sampled: Sequence[SampledRubric],
        local: Sequence[SampledRubric],
        advantages: FloatArray,
        size: int,
        mode: str,
        *,
        seconds: float,
    ) -> None:
        self._log_completion_extra("disc", [one.disc for one in local])
        self._log_completion_extra("anchor", [one.anchor for one in local])
        self._log_completion_extra("invalid", [one.invalid or one.outage for one in local])
        if rank_and_size()[0] != 0:
            return
        for name, value in rubric_metrics(sampled, size=size, seconds=seconds).items():
            self._log_metric(name, value)
        if self.records is not None:
            rows = [
                rubric_record(one, member=index % size, advantage=float(advantages[index]), mode=mode)
                for index, one in enumerate(sampled)
            ]
            self.records.append(rows, step=self.state.global_step)

    def _stop_if_hopeless(self, sampled: Sequence[SampledRubric]) -> None:
        if not all(one.outage for one in sampled):
            self._unscorable_steps = 0
            return
        self._unscorable_steps += 1
        if self._unscorable_steps == self.max_unscorable_steps:
            raise UnscorableRunError(
                f"no rubric could be judged in {self._unscorable_steps} steps in a row; the last reason: {sampled[-1].outage} "
                "(max_unscorable_steps sets how many are borne, 0 any number)"
            )


def _check_trainer_options(trainer_options: Mapping[str, Any]) -> None:
    known = {"processing_class", "callbacks", "optimizers", "peft_config", "quantization_config"}
    unknown = sorted(set(trainer_options) - known)
    if unknown:
        raise ConfigError(f"RubricGeneratorTrainer takes no {unknown[0]}; besides its own it takes {', '.join(sorted(known))}")


def _check_objective(anchor_weight: float, use_discriminability: bool, std_floor: float, max_unscorable_steps: int) -> None:
    numbers = {"anchor_weight": anchor_weight, "std_floor": std_floor, "max_unscorable_steps": max_unscorable_steps}
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise ConfigError(f"{name} must be at least 0, got {value}")
    if anchor_weight == 0 and not use_discriminability:
        raise ConfigError("anchor_weight 0 without discriminability leaves nothing to train for; give one of the two")
