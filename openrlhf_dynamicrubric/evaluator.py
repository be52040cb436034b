"""Generator, verifier and scoring in one object: what the adapters call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np

from openrlhf_dynamicrubric import scoring
from openrlhf_dynamicrubric.errors import ConfigError, shown
from openrlhf_dynamicrubric.generator import GeneratorCallError, InvalidRubricError, RubricGenerator
from openrlhf_dynamicrubric.llm.base import LanguageModel
from openrlhf_dynamicrubric.text import strip_reasoning
from openrlhf_dynamicrubric.types import (
    Evaluation,
    FloatArray,
    ResponseSet,
    Rubric,
    Unscorable,
    Usage,
    VerdictMatrix,
    WrittenRubric,
)
from openrlhf_dynamicrubric.verifier import Verifier


@dataclass(frozen=True)
class EvaluatorConfig:
    """Options of rubric writing and judging, the same in every command and adapter.

    Raises:
        ConfigError: a value of another type (text is not read as a number, nor a number as true or false) or out of range.
    """

    generator: str = field(
        default="embedded",
        metadata={"help": "DR-Generator: a folder, a hub name, or `embedded` (SmolLM2-135M). Paper: Qwen3-8B."},
    )
    verifier: str = field(
        default="embedded",
        metadata={"help": "DR-Verifier, never trained: a folder, a hub name, or `embedded`. Paper: Qwen3-8B."},
    )
    judge_dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "Precision of generator and verifier; `auto` takes that of the checkpoint."}
    )
    judge_batch_tokens: int = field(
        default=16_384, metadata={"help": "Most tokens, padding included, in one forward pass of an in-process judge."}
    )
    judge_seed: int = field(default=0, metadata={"help": "Seed of the order of responses and of rubric sampling."})
    max_items: int = field(default=8, metadata={"help": "Most items of a rubric. Paper: the model's choice."})
    max_criterion_chars: int = field(
        default=200, metadata={"help": "Longest criterion under constrained decoding, in characters."}
    )
    rubric_max_tokens: int = field(default=1024, metadata={"help": "Longest rubric, in tokens. Paper: 8192."})
    rubric_temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of rubrics."})
    rubric_retries: int = field(
        default=2, metadata={"help": "Further attempts after an invalid rubric; then the group is unscorable."}
    )
    rubric_source: Literal["responses", "prompt"] = field(
        default="responses",
        metadata={"help": "What the rubric is written from; `prompt` is the paper's ablation with a static rubric."},
    )
    constrained_rubrics: bool = field(
        default=True, metadata={"help": "Decode rubrics against their JSON schema. Paper: not said."}
    )
    verdict_threshold: float = field(
        default=0.5, metadata={"help": "A verdict is yes from this P(yes) / (P(yes) + P(no)) on, in (0, 1)."}
    )
    max_response_chars: int = field(
        default=10_000,
        metadata={"help": "A longer response, or prompt, is cut in its middle before judging. Paper: 3K tokens a response."},
    )
    strip_reasoning: bool = field(
        default=True, metadata={"help": "Remove <think> blocks from responses and anchors before judging."}
    )

    def __post_init__(self) -> None:
        hints = get_type_hints(EvaluatorConfig)
        for option in fields(EvaluatorConfig):
            value = getattr(self, option.name)
            if not _has_type(value, hints[option.name]) or not _in_range(option.name, value):
                raise ConfigError(f"{option.name} cannot be {shown(value)}. {option.name}: {option.metadata['help']}")


def _has_type(value: Any, hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool
    return isinstance(value, int | float) if hint is float else isinstance(value, hint)


def _in_range(name: str, value: Any) -> bool:
    if name in ("judge_batch_tokens", "max_items", "max_criterion_chars", "rubric_max_tokens"):
        return value >= 1
    ranges = {
        "generator": lambda: bool(value.strip()),
        "verifier": lambda: bool(value.strip()),
        "rubric_retries": lambda: value >= 0,
        "rubric_temperature": lambda: 0 <= value < float("inf"),
        "verdict_threshold": lambda: 0 < value < 1,
        "max_response_chars": lambda: value >= 2,
    }
    return name not in ranges or ranges[name]()


def rubric_generator(model: LanguageModel, config: EvaluatorConfig) -> RubricGenerator:
    """The generator that a configuration describes, with a model that is loaded already."""
    return RubricGenerator(
        model=model,
        max_items=config.max_items,
        max_criterion_chars=config.max_criterion_chars,
        max_tokens=config.rubric_max_tokens,
        temperature=config.rubric_temperature,
        retries=config.rubric_retries,
        constrained=config.constrained_rubrics,
        source=config.rubric_source,
        max_response_chars=config.max_response_chars,
        seed=config.judge_seed,
    )


class Evaluator:
    """Scores response sets with rubrics written for them.

    Args:
        generator: DR-Generator's model; None where only given rubrics are judged.
        verifier: DR-Verifier's model.
        config: all options; the models that it names are for whoever loads them.
    """

    def __init__(
        self, *, generator: LanguageModel | None, verifier: LanguageModel, config: EvaluatorConfig | None = None
    ) -> None:
        self.config = config = config or EvaluatorConfig()
        self.verifier = Verifier(verifier, max_response_chars=config.max_response_chars)
        self.generator = None if generator is None else rubric_generator(generator, config)

    async def evaluate_many(self, response_sets: Sequence[ResponseSet]) -> list[Evaluation | Unscorable]:
        """Each response set with a rubric of its own, all at once; the result is in the order of the input."""
        return list(await asyncio.gather(*(self.evaluate(response_set) for response_set in response_sets)))

    async def evaluate(self, response_set: ResponseSet) -> Evaluation | Unscorable:
        """One response set: write its rubric, judge every item, score.

        Args:
            response_set: x and C.

        Returns:
            The scores; or why there are none, which is never a score.

        Raises:
            ConfigError: this evaluator was made without a generator.
        """
        if self.generator is None:
            raise ConfigError("this evaluator has no generator; make it with one, or call judge() with a rubric")
        response_set = self.prepare(response_set)
        try:
            written = await self.generator.write(response_set)
        except (InvalidRubricError, GeneratorCallError) as error:
            return Unscorable(
                response_set,
                "invalid_rubric" if isinstance(error, InvalidRubricError) else "generator_call",
                str(error),
                error.rejected,
                generator_usage=error.usage,
                rejected_texts=error.rejected_texts,
            )
        return await self.judge(written.rubric, response_set, written=written)

    async def judge(
        self, rubric: Rubric, response_set: ResponseSet, *, written: WrittenRubric | None = None
    ) -> Evaluation | Unscorable:
        """A given rubric on one response set.

        An item with a missing verdict is left out for the whole group and the weights of the others count alone.

        Args:
            rubric: the items.
            response_set: x and C.
            written: how the rubric came about, kept in the result.

        Returns:
            The scores; or why there are none.
        """
        response_set = self.prepare(response_set)
        matrix = await self.verifier.verdicts(response_set.prompt, response_set.responses, rubric.criteria)
        if np.isnan(matrix.probabilities_MK).any(axis=1).all():  # of K answers one is missing, for every item
            return _without_verdicts(rubric, response_set, matrix, written)
        return self._scored(rubric, response_set, matrix, written)

    def _scored(
        self, rubric: Rubric, response_set: ResponseSet, matrix: VerdictMatrix, written: WrittenRubric | None
    ) -> Evaluation:
        whole_M = [not np.isnan(row_K).any() for row_K in matrix.probabilities_MK]
        kept = Rubric(tuple(item for item, whole in zip(rubric.items, whole_M, strict=True) if whole))
        probabilities_MK = matrix.probabilities_MK[whole_M]
        verdicts_MK = (probabilities_MK >= self.config.verdict_threshold).astype(np.float64)
        return Evaluation(
            response_set=response_set,
            rubric=kept,
            probabilities_MK=probabilities_MK,
            verdicts_MK=verdicts_MK,
            scores_K=scoring.response_scores(kept.weights_M, verdicts_MK),
            dropped=tuple(item for item, whole in zip(rubric.items, whole_M, strict=True) if not whole),
            failures=_messages(matrix),
            written=written,
            verifier_usage=matrix.usage,
            cached_verdicts=matrix.cached,
            failed_verdicts=int(np.isnan(matrix.probabilities_MK).sum()),
            dropped_probabilities=_rows(matrix.probabilities_MK[[not whole for whole in whole_M]]),
        )

    def prepare(self, response_set: ResponseSet) -> ResponseSet:
        """The response set as judges see it: without reasoning blocks, where the option says so."""
        if not self.config.strip_reasoning:
            return response_set
        return ResponseSet(
            response_set.prompt,
            tuple(strip_reasoning(text) for text in response_set.responses),
            tuple(strip_reasoning(text) for text in response_set.anchors),
            response_set.id,
        )


def _without_verdicts(
    rubric: Rubric, response_set: ResponseSet, matrix: VerdictMatrix, written: WrittenRubric | None
) -> Unscorable:
    failures = _messages(matrix)
    return Unscorable(
        response_set,
        "verifier_call",
        f"no item has all its verdicts; {failures[0]}",
        written.rejected if written else (),
        generator_usage=written.usage if written else Usage(),
        verifier_usage=matrix.usage,
        failed_verdicts=int(np.isnan(matrix.probabilities_MK).sum()),
        cached_verdicts=matrix.cached,
        failures=failures,
        written=written,
        dropped=rubric.items,
        dropped_probabilities=_rows(matrix.probabilities_MK),
        rejected_texts=written.rejected_texts if written else (),
    )


def _messages(matrix: VerdictMatrix) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(error) for error in matrix.failures))


def _rows(array: FloatArray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in array.tolist())
