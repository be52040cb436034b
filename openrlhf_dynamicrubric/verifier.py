"""A prompt, its responses and criteria to a matrix of yes-probabilities."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence

import numpy as np

from openrlhf_dynamicrubric import prompts
from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.llm.base import Judgement, LanguageModel
from openrlhf_dynamicrubric.text import encodable, shorten
from openrlhf_dynamicrubric.types import Prompt, Usage, VerdictMatrix


def verifier_prompt(prompt: Prompt, response: str, *, max_response_chars: int) -> str:
    """Beginning of the verifier's question: what all criteria of one response share.

    Args:
        prompt: what the policy was asked.
        response: one response.
        max_response_chars: a longer response, or prompt, is cut in its middle.

    Returns:
        The text up to the criterion.
    """
    request, _ = shorten(prompts.conversation_text(prompt), max_response_chars)
    response, _ = shorten(response, max_response_chars)
    code = prompts.marker_code(request, response)
    return prompts.fill("verifier", code=code, request=request, response=response)


def verifier_question(criterion: str) -> str:
    """End of the verifier's question. The criterion is quoted: text that a model wrote stays on its line."""
    return prompts.fill("verifier_question", criterion=json.dumps(encodable(criterion), ensure_ascii=False))


class Verifier:
    """Asks one frozen language model about each response and criterion, each identical triple once.

    Args:
        model: DR-Verifier.
        max_response_chars: see `verifier_prompt`.
        cache_size: verdicts that are remembered between calls, the least recently used forgotten first.
    """

    def __init__(self, model: LanguageModel, *, max_response_chars: int, cache_size: int = 65_536) -> None:
        self.model = model
        self.max_response_chars = max_response_chars
        self.cache_size = cache_size
        self._known: OrderedDict[bytes, float] = OrderedDict()
        self._asked: dict[bytes, asyncio.Future[float | ModelCallError | None]] = {}

    async def verdicts(self, prompt: Prompt, responses: Sequence[str], criteria: Sequence[str]) -> VerdictMatrix:
        """P(yes) of every criterion on every response.

        Args:
            prompt: x.
            responses: K texts.
            criteria: M texts.

        Returns:
            The matrix, shape (M, K); a failed call leaves NaN and its error, never a number.
        """
        distinct = list(dict.fromkeys(responses))
        columns = await asyncio.gather(*(self._judge(prompt, response, criteria) for response in distinct))
        column_of = dict(zip(distinct, columns, strict=True))
        answers = [[column_of[response][0][criterion] for response in responses] for criterion in criteria]
        failures = {id(answer): answer for row in answers for answer in row if isinstance(answer, ModelCallError)}
        asked = sum(column[1] for column in columns)
        return VerdictMatrix(
            probabilities_MK=np.array(
                [[np.nan if isinstance(answer, ModelCallError) else answer for answer in row] for row in answers],
                dtype=np.float64,
            ).reshape(len(criteria), len(responses)),
            failures=tuple(failures.values()),
            asked=asked,
            cached=len(criteria) * len(responses) - asked,
            usage=sum((column[2] for column in columns), Usage()),
        )

    async def _judge(
        self, prompt: Prompt, response: str, criteria: Sequence[str]
    ) -> tuple[dict[str, float | ModelCallError], int, Usage]:
        """Answers by criterion for one response, how many were asked for this, and their cost."""
        shared = verifier_prompt(prompt, response, max_response_chars=self.max_response_chars)
        keys = {criterion: _key(shared, criterion) for criterion in criteria}
        wanted: dict[bytes, str] = {}
        for criterion, key in keys.items():
            wanted.setdefault(key, criterion)
        answers: dict[bytes, float | ModelCallError] = {}
        asked, usage = 0, Usage()
        while wanted:
            answers |= {key: self._recall(key) for key in wanted if key in self._known}
            waiting = {key: self._asked[key] for key in wanted if key in self._asked}
            # No await since the look at what is asked already: between the two, nobody else can ask the same.
            new = {key: c for key, c in wanted.items() if key not in answers and key not in waiting}
            if new:
                judgement = await self._ask(shared, new)
                answers.update(zip(new, judgement.probabilities, strict=True))
                asked, usage = asked + len(new), usage + judgement.usage
            for key, future in waiting.items():
                answer = await asyncio.shield(future)
                if answer is not None:
                    answers[key] = answer
            wanted = {key: criterion for key, criterion in wanted.items() if key not in answers}
        return {criterion: answers[key] for criterion, key in keys.items()}, asked, usage

    async def _ask(self, shared: str, questions: Mapping[bytes, str]) -> Judgement:
        """Answers from the model; whoever waits for one gets it, or None (ask yourself) where this call is abandoned."""
        futures = {key: asyncio.get_running_loop().create_future() for key in questions}
        self._asked.update(futures)
        answers: Sequence[float | ModelCallError | None] = [None] * len(questions)
        try:
            judgement = await self._call(shared, [verifier_question(criterion) for criterion in questions.values()])
            answers = judgement.probabilities
            return judgement
        finally:
            for (key, future), answer in zip(futures.items(), answers, strict=True):
                del self._asked[key]
                if isinstance(answer, float):
                    self._remember(key, answer)
                future.set_result(answer)

    async def _call(self, shared: str, questions: Sequence[str]) -> Judgement:
        try:
            judgement = await self.model.yes_probabilities(shared, questions)
        except (ModelCallError, OSError) as error:  # a connection or a timeout is a failed call, whoever raises it
            failed = error if isinstance(error, ModelCallError) else ModelCallError(f"{type(error).__name__}: {error}")
            return Judgement((failed,) * len(questions))
        given = judgement.probabilities
        if len(given) != len(questions):
            error = ModelCallError(f"asked {len(questions)} questions, got {len(given)} answers")
            return Judgement((error,) * len(questions), judgement.usage)
        return Judgement(tuple(map(_checked, given)), judgement.usage)

    def _recall(self, key: bytes) -> float:
        self._known.move_to_end(key)
        return self._known[key]

    def _remember(self, key: bytes, answer: float) -> None:
        self._known[key] = answer
        while len(self._known) > self.cache_size:
            self._known.popitem(last=False)


def _checked(answer: float | ModelCallError) -> float | ModelCallError:
    if isinstance(answer, ModelCallError):
        return answer
    if isinstance(answer, bool) or not isinstance(answer, int | float | np.floating) or not 0.0 <= answer <= 1.0:
        return ModelCallError(f"P(yes) must lie in [0, 1], got {answer!r}")
    return float(answer)


def _key(shared: str, criterion: str) -> bytes:
    return hashlib.sha256(f"{shared}\0{encodable(criterion)}".encode()).digest()
