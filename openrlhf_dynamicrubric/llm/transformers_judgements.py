"""Waiting yes/no calls to answers, in batches; one prefix serves all questions about one text."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.llm.base import Judgement
from openrlhf_dynamicrubric.llm.batches import padded, plan, run_in_halves
from openrlhf_dynamicrubric.llm.calls import Call, resolve
from openrlhf_dynamicrubric.llm.transformers_verdicts import (
    SharedRow,
    plain_log_odds,
    shared_columns,
    shared_log_odds,
    shared_row_limit,
    sharing_error,
)
from openrlhf_dynamicrubric.types import Usage

if TYPE_CHECKING:
    from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JudgementRequest:
    """The arguments of one `yes_probabilities` call."""

    shared: str
    questions: tuple[str, ...]


@dataclass(slots=True, eq=False)
class _Question:
    """One question about one text, whoever asks it, with its answer once there is one."""

    tokens: list[int]
    computed: int = 0
    seconds: float = 0.0
    answer: float | ModelCallError | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Unit:
    """Questions that are computed in one row, behind the first `prefix` tokens that they share; none for a single one."""

    prefix: int
    questions: tuple[_Question, ...]

    @property
    def row(self) -> SharedRow:
        prefix = next(iter(self.questions)).tokens[: self.prefix]
        return SharedRow(prefix, [question.tokens[self.prefix :] for question in self.questions])

    @property
    def tokens(self) -> int:
        return self.prefix + sum(len(question.tokens) - self.prefix for question in self.questions)


def answer_judgements(owner: TransformersModel, calls: Sequence[Call[JudgementRequest]]) -> None:
    """Answers every call: a probability, or the error that is its own, for each question.

    Args:
        owner: model, tokenizer and limits.
        calls: what waits.
    """
    if not calls:
        return
    texts: dict[str, dict[str, _Question]] = {}
    for call in calls:
        known = texts.setdefault(call.request.shared, {})
        new = [question for question in dict.fromkeys(call.request.questions) if question not in known]
        for question, tokens in zip(new, owner.chat.questions(call.request.shared, new), strict=True):
            known[question] = _Question(tokens)
    _compute(owner, [list(questions.values()) for questions in texts.values()])
    paid: set[int] = set()
    resolve([(call, _judgement(call, texts[call.request.shared], paid)) for call in calls])


def _judgement(call: Call[JudgementRequest], known: dict[str, _Question], paid: set[int]) -> Judgement:
    """The answers to one call. Of several calls with the same question the first one pays for it."""
    questions = [known[question] for question in call.request.questions]
    read = sum(len(question.tokens) for question in questions)
    own = [question for question in dict.fromkeys(questions) if id(question) not in paid]
    paid.update(id(question) for question in own)
    usage = Usage(
        calls=len(questions),
        prompt_tokens=read,
        cached_tokens=read - sum(question.computed for question in own),
        seconds=sum(question.seconds for question in own),
    )
    return Judgement(tuple(_answered(question) for question in questions), usage)


def _answered(question: _Question) -> float | ModelCallError:
    if question.answer is None:
        raise RuntimeError("a question was not computed")
    return question.answer


def _compute(owner: TransformersModel, texts: Iterable[list[_Question]]) -> None:
    single: list[_Unit] = []
    shared: list[_Unit] = []
    for questions in texts:
        fitting = [question for question in questions if _fits(owner, question)]
        for unit in _units(owner, fitting):
            (shared if unit.prefix else single).append(unit)
    single.sort(key=lambda unit: unit.tokens)
    shared.sort(key=lambda unit: unit.prefix)
    ids, answers = owner.pad_token_id, owner.answer_tokens

    def run_single(batch: list[_Unit]) -> None:
        sequences = [unit.questions[0].tokens for unit in batch]
        _timed(batch, lambda: [[v] for v in plain_log_odds(owner.model, sequences, answers, pad_token_id=ids)])

    def run_shared(batch: list[_Unit]) -> None:
        _timed(batch, lambda: shared_log_odds(owner.model, [unit.row for unit in batch], answers, pad_token_id=ids))

    def padded_single(batch: Sequence[_Unit]) -> float:
        return padded([unit.tokens for unit in batch], pads=owner.pads)

    for units, tokens, run in ((single, padded_single, run_single), (shared, _padded_shared, run_shared)):
        for batch in plan(units, tokens=tokens, budget=owner.judgement_tokens):
            for unit in run_in_halves(run, batch):
                _compute_alone(owner, unit, run)


def _compute_alone(owner: TransformersModel, unit: _Unit, run: Callable[[list[_Unit]], None]) -> None:
    """A row that did not fit into the device's memory: fewer questions at a time, then none."""
    if len(unit.questions) > 1:
        half = len(unit.questions) // 2
        for questions in (unit.questions[:half], unit.questions[half:]):
            part = _Unit(unit.prefix, questions)
            if run_in_halves(run, [part]):
                _compute_alone(owner, part, run)
        return
    for question in unit.questions:
        question.answer = ModelCallError(f"{unit.tokens} tokens do not fit into the memory of {owner.model.device}")


def _fits(owner: TransformersModel, question: _Question) -> bool:
    limit = owner.context_tokens
    if limit is None or len(question.tokens) < limit:
        return True
    question.answer = ModelCallError(
        f"the question has {len(question.tokens)} tokens; the context of {owner.name} takes {limit - 1} and the answer"
    )
    return False


def _units(owner: TransformersModel, questions: list[_Question]) -> list[_Unit]:
    """The rows in which questions about one text are computed: all behind one prefix, or each alone."""
    longest = max((len(question.tokens) for question in questions), default=0)
    if len(questions) < 2 or not shares_prefixes(owner) or longest > shared_row_limit(owner.model):
        return [_Unit(0, (question,)) for question in questions]
    return [_Unit(_common_prefix([question.tokens for question in questions]), tuple(questions))]


def _common_prefix(sequences: Sequence[list[int]]) -> int:
    """How many tokens all sequences begin with, leaving each at least one."""
    lowest, highest = min(sequences), max(sequences)  # in order of their tokens: what these two share, all share
    limit = min(map(len, sequences)) - 1
    for index in range(limit):
        if lowest[index] != highest[index]:
            return index
    return limit


def _padded_shared(batch: Sequence[_Unit]) -> int:
    lengths = [[len(question.tokens) - unit.prefix for question in unit.questions] for unit in batch]
    return len(batch) * (max(unit.prefix for unit in batch) + shared_columns(lengths))


def _timed(batch: list[_Unit], run: Callable[[], list[list[float]]]) -> None:
    started = time.perf_counter()
    values = run()
    seconds = time.perf_counter() - started
    total = sum(unit.tokens for unit in batch)
    for unit, row in zip(batch, values, strict=True):
        for number, (question, value) in enumerate(zip(unit.questions, row, strict=True)):
            question.computed = len(question.tokens) - (unit.prefix if number else 0)
            question.seconds = seconds * question.computed / total
            question.answer = _probability(value)


def _probability(log_odds: float) -> float | ModelCallError:
    if math.isnan(log_odds):
        return ModelCallError("the model's logits are not numbers")
    if log_odds < 0:
        return math.exp(log_odds) / (1 + math.exp(log_odds))
    return 1 / (1 + math.exp(-log_odds))


def shares_prefixes(owner: TransformersModel) -> bool:
    """Whether this model answers alike with a shared prefix and without: tried once, on a small example."""
    if owner.shares_prefixes is None:
        reason = _why_not(owner)
        owner.shares_prefixes = reason is None
        if reason:
            _log.warning(
                "%s cannot share the text before its questions (%s): every question is computed whole, several times as slow",
                owner.name,
                reason,
            )
    return owner.shares_prefixes


def _why_not(owner: TransformersModel) -> str | None:
    import torch

    try:
        error = sharing_error(owner.model, owner.answer_tokens, pad_token_id=owner.pad_token_id)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, TypeError, ValueError, IndexError) as failure:  # what architectures say to a mask they do not know
        return f"its forward pass says: {failure}"
    tolerated = 1e-3 if owner.model.dtype in (torch.float32, torch.float64) else 0.5
    if error <= tolerated:
        return None
    return "its attention takes no mask of ours" if math.isinf(error) else f"log-odds would differ by {error:.2g}"
