"""The values that the parts hand to each other: frozen, checked once when they are made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from openrlhf_dynamicrubric.errors import DataError, ModelCallError, shown

Message = Mapping[str, str]
"""One chat turn: `{"role": ..., "content": ...}`."""

Prompt = str | Sequence[Message]
"""What the policy was asked: plain text, or chat turns."""

FloatArray = NDArray[np.float64]

MIN_WEIGHT, MAX_WEIGHT = 1, 5


@dataclass(frozen=True, slots=True)
class ResponseSet:
    """One prompt x with its response set C and, where there are any, ranked anchors.

    Args:
        prompt: what the policy was asked, text or chat turns.
        responses: the K >= 1 responses that are scored together; any iterable of texts, kept as a tuple.
        anchors: responses to the same prompt in ranked order, best first; may be empty.
        id: the caller's name for the prompt, kept in records.

    Raises:
        DataError: no response, or something that is not text, or a prompt that is neither text nor turns.
    """

    prompt: Prompt
    responses: tuple[str, ...]
    anchors: tuple[str, ...] = ()
    id: str = ""

    def __post_init__(self) -> None:
        turns = self.prompt
        if not isinstance(turns, str) and not (
            isinstance(turns, Sequence) and turns and all(isinstance(turn, Mapping) for turn in turns)
        ):
            raise DataError(f"prompt of response set {self.id!r} must be text or a list of chat turns, got {shown(turns)}")
        for name in ("responses", "anchors"):
            texts = getattr(self, name)
            if isinstance(texts, str) or not isinstance(texts, Iterable):  # a text would fall apart into its letters
                raise DataError(f"{name} of response set {self.id!r} must be a list of texts, got {shown(texts)}")
            object.__setattr__(self, name, tuple(texts))
            for index, text in enumerate(getattr(self, name)):
                if not isinstance(text, str):
                    raise DataError(f"{name}[{index}] of response set {self.id!r} must be text, got {shown(text)}")
        if not self.responses:
            raise DataError(f"response set {self.id!r} has no responses; it needs at least one")


@dataclass(frozen=True, slots=True)
class RubricItem:
    """One yes/no criterion r_m and its weight w_m, a whole number 1..5.

    Raises:
        DataError: an empty criterion, or another weight.
    """

    criterion: str
    weight: int

    def __post_init__(self) -> None:
        if not isinstance(self.criterion, str) or not self.criterion.strip():
            raise DataError(f"a criterion must be text that is not empty, got {shown(self.criterion)}")
        whole = isinstance(self.weight, int) and not isinstance(self.weight, bool)
        if not whole or not MIN_WEIGHT <= self.weight <= MAX_WEIGHT:
            raise DataError(f"weights must be whole numbers {MIN_WEIGHT}..{MAX_WEIGHT}, got {shown(self.weight)}")


@dataclass(frozen=True, slots=True)
class Rubric:
    """M >= 1 weighted items. `parsing.parse_rubric` makes valid ones out of text.

    Raises:
        DataError: no item; there would be no weight to divide by.
    """

    items: tuple[RubricItem, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", tuple(self.items))
        if not self.items:
            raise DataError("a rubric needs at least one item")

    @property
    def criteria(self) -> tuple[str, ...]:
        """The M criteria, in order."""
        return tuple(item.criterion for item in self.items)

    @property
    def weights_M(self) -> FloatArray:
        """The M weights as floats, shape (M,)."""
        return np.array([item.weight for item in self.items], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls to one model cost. Sums with `+`.

    Args:
        calls: requests sent.
        prompt_tokens: tokens read, cached ones included.
        cached_tokens: of these, tokens that a shared prefix saved.
        completion_tokens: tokens written.
        seconds: time spent in the model, in seconds.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    seconds: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.completion_tokens + other.completion_tokens,
            self.seconds + other.seconds,
        )

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class WrittenRubric:
    """A rubric as the generator wrote it for one response set, with how it came about.

    Args:
        rubric: the valid rubric.
        text: the model's own text.
        order: position i of the prompt showed response `order[i]`.
        rejected: the reason for each earlier attempt that was not a valid rubric.
        cut_responses: how many responses were shortened to fit.
        usage: cost of all attempts.
        rejected_texts: what the model wrote in each of the rejected attempts.
    """

    rubric: Rubric
    text: str
    order: tuple[int, ...]
    rejected: tuple[str, ...] = ()
    cut_responses: int = 0
    usage: Usage = field(default_factory=Usage)
    rejected_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class VerdictMatrix:
    """What the verifier said of M criteria on K responses.

    Args:
        probabilities_MK: P(yes), shape (M, K), in [0, 1]; NaN where the call failed.
        failures: the error of each distinct failed call.
        asked: verdicts that were asked of the model.
        cached: verdicts that were known already (identical triples).
        usage: cost of what was asked.
    """

    probabilities_MK: FloatArray
    failures: tuple[ModelCallError, ...] = ()
    asked: int = 0
    cached: int = 0
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """A scored response set: comparable inside this group only.

    Args:
        response_set: what was scored.
        rubric: the items that counted.
        probabilities_MK: the verifier's P(yes), shape (M, K).
        verdicts_MK: 1 where the probability reaches the threshold, else 0, shape (M, K).
        scores_K: E(x, y_k | C), shape (K,), in [0, 1].
        dropped: items left out because a verdict on them was missing.
        failures: the messages of the calls that failed.
        written: the rubric as the generator wrote it; None for a rubric that was given.
        verifier_usage: cost of the verdicts.
        cached_verdicts: verdicts that needed no call.
        failed_verdicts: verdicts whose call failed.
        dropped_probabilities: P(yes) of each dropped item on each response, NaN where the call failed.
    """

    response_set: ResponseSet
    rubric: Rubric
    probabilities_MK: FloatArray
    verdicts_MK: FloatArray
    scores_K: FloatArray
    dropped: tuple[RubricItem, ...] = ()
    failures: tuple[str, ...] = ()
    written: WrittenRubric | None = None
    verifier_usage: Usage = field(default_factory=Usage)
    cached_verdicts: int = 0
    failed_verdicts: int = 0
    dropped_probabilities: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Unscorable:
    """A response set without scores, and why. Not a score: adapters leave the group out and count it.

    Args:
        response_set: what could not be scored.
        kind: "invalid_rubric" (the generator wrote none that is valid), "generator_call" or "verifier_call" (a call failed).
        reason: one sentence.
        rejected: the reason for each attempt that was not a valid rubric.
        generator_usage: cost of the attempts.
        verifier_usage: cost of the verdicts.
        failed_verdicts: verdicts whose call failed.
        cached_verdicts: verdicts that needed no call.
        failures: the messages of the calls that failed.
        written: the rubric, where a valid one was written.
        dropped: its items, where their verdicts are missing.
        dropped_probabilities: P(yes) of each of them on each response, NaN where the call failed.
        rejected_texts: what the model wrote in each of the rejected attempts.
    """

    response_set: ResponseSet
    kind: str
    reason: str
    rejected: tuple[str, ...] = ()
    generator_usage: Usage = field(default_factory=Usage)
    verifier_usage: Usage = field(default_factory=Usage)
    failed_verdicts: int = 0
    cached_verdicts: int = 0
    failures: tuple[str, ...] = ()
    written: WrittenRubric | None = None
    dropped: tuple[RubricItem, ...] = ()
    dropped_probabilities: tuple[tuple[float, ...], ...] = ()
    rejected_texts: tuple[str, ...] = ()
