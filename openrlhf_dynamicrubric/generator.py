"""A prompt and its response set to a rubric."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, replace
from typing import Literal

from openrlhf_dynamicrubric import prompts
from openrlhf_dynamicrubric.errors import ModelCallError, RubricParseError
from openrlhf_dynamicrubric.llm.base import Completion, LanguageModel
from openrlhf_dynamicrubric.parsing import parse_rubric, rubric_schema
from openrlhf_dynamicrubric.text import shorten
from openrlhf_dynamicrubric.types import Message, ResponseSet, Rubric, Usage, WrittenRubric

RubricSource = Literal["responses", "prompt"]


def content_seed(seed: int, response_set: ResponseSet, *more: object) -> int:
    """A seed that depends on what is scored and not on where: the same on every rank, in training and by hand.

    Returns:
        A whole number in [0, 2^31); the same for the same responses in another order.
    """
    parts = (seed, prompts.conversation_text(response_set.prompt), *sorted(response_set.responses), *more)
    digest = hashlib.sha256("\0".join(repr(part) for part in parts).encode("utf-8", "backslashreplace")).digest()
    return int.from_bytes(digest[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class GeneratorPrompt:
    """The chat that asks for a rubric, with what was done to the response set on the way.

    Args:
        messages: one user turn.
        order: position i shows response `order[i]`; empty where the rubric is written from the prompt alone.
        cut_responses: how many responses were shortened.
    """

    messages: list[Message]
    order: tuple[int, ...]
    cut_responses: int


def generator_prompt(
    response_set: ResponseSet,
    *,
    max_items: int,
    max_response_chars: int,
    seed: int,
    source: RubricSource = "responses",
) -> GeneratorPrompt:
    """The chat that asks for a rubric for one response set.

    Responses stand in a seeded random order, which depends on what they say and not on the order in which they come, so that
    a response earns the same wherever it stands. The markers around them carry a code that none of them contains.

    Args:
        response_set: x and C; anchors are never shown.
        max_items: most items to ask for.
        max_response_chars: a longer response, or prompt, is cut in its middle.
        seed: of the order.
        source: "prompt" leaves the responses out: the ablation with a static rubric.

    Returns:
        The chat; the same arguments give the same one.
    """
    request, _ = shorten(prompts.conversation_text(response_set.prompt), max_response_chars)
    if source == "prompt":
        text = prompts.fill("generator_static", code=prompts.marker_code(request), request=request, max_items=str(max_items))
        return GeneratorPrompt([{"role": "user", "content": text}], (), 0)
    order = sorted(range(len(response_set.responses)), key=lambda index: response_set.responses[index])
    random.Random(content_seed(seed, response_set)).shuffle(order)
    shown = [shorten(response_set.responses[index], max_response_chars) for index in order]
    responses = [text for text, _ in shown]
    code = prompts.marker_code(request, *responses)
    text = prompts.fill(
        "generator",
        code=code,
        request=request,
        responses=prompts.fenced_responses(responses, code),
        max_items=str(max_items),
    )
    return GeneratorPrompt([{"role": "user", "content": text}], tuple(order), sum(cut for _, cut in shown))


def read_rubric(completion: Completion, *, max_items: int) -> Rubric:
    """The rubric in a completion that the model ended by itself.

    Raises:
        RubricParseError: cut off, or not a valid rubric.
    """
    if completion.finish_reason != "stop":
        raise RubricParseError(f"cut off after {completion.usage.completion_tokens} tokens")
    return parse_rubric(completion.text, max_items=max_items)


class InvalidRubricError(RubricParseError):
    """No attempt gave a valid rubric.

    Args:
        rejected: the reason for each attempt.
        usage: cost of all attempts.
        rejected_texts: what the model wrote in each of them.
    """

    def __init__(self, rejected: tuple[str, ...], usage: Usage, rejected_texts: tuple[str, ...] = ()) -> None:
        super().__init__(f"no valid rubric in {len(rejected)} attempts; the last: {rejected[-1]}")
        self.rejected = rejected
        self.usage = usage
        self.rejected_texts = rejected_texts


class GeneratorCallError(ModelCallError):
    """A call failed, perhaps after attempts that were not valid rubrics.

    Args:
        message: of the call that failed.
        rejected: the reason for each attempt before it.
        usage: cost of these attempts.
        rejected_texts: what the model wrote in each of them.
    """

    def __init__(self, message: str, rejected: tuple[str, ...], usage: Usage, rejected_texts: tuple[str, ...]) -> None:
        super().__init__(message)
        self.rejected = rejected
        self.usage = usage
        self.rejected_texts = rejected_texts


@dataclass(frozen=True, slots=True)
class RubricGenerator:
    """Writes rubrics with one language model.

    Args:
        model: DR-Generator.
        max_items: most items a rubric may have.
        max_criterion_chars: longest criterion under constrained decoding, in characters.
        max_tokens: longest rubric, in tokens.
        temperature: of sampling.
        retries: further attempts after a rubric that is not valid.
        constrained: decode against the rubric's JSON schema.
        source: "responses", or "prompt" for a static rubric.
        max_response_chars: see `generator_prompt`.
        seed: of order and sampling.
    """

    model: LanguageModel
    max_items: int
    max_criterion_chars: int
    max_tokens: int
    temperature: float
    retries: int
    constrained: bool
    source: RubricSource
    max_response_chars: int
    seed: int

    async def write(self, response_set: ResponseSet) -> WrittenRubric:
        """The rubric for one response set.

        Raises:
            InvalidRubricError: no attempt was valid.
            GeneratorCallError: a call failed.
        """
        prompt = generator_prompt(
            response_set,
            max_items=self.max_items,
            max_response_chars=self.max_response_chars,
            seed=self.seed,
            source=self.source,
        )
        schema = rubric_schema(max_items=self.max_items, max_criterion_chars=self.max_criterion_chars)
        # A static rubric is the same one whatever the responses are, so their text must not reach its seed either.
        seeded = response_set if self.source == "responses" else replace(response_set, responses=("",))
        rejected: list[str] = []
        texts: list[str] = []
        usage = Usage()
        for attempt in range(1 + self.retries):
            try:
                completion = await self.model.complete(
                    prompt.messages,
                    max_tokens=self.max_tokens,
                    temperature=self.temperature,
                    seed=content_seed(self.seed, seeded, attempt),
                    json_schema=schema if self.constrained else None,
                )
            except ModelCallError as error:
                raise GeneratorCallError(str(error), tuple(rejected), usage, tuple(texts)) from error
            usage += completion.usage
            try:
                rubric = read_rubric(completion, max_items=self.max_items)
            except RubricParseError as error:
                rejected.append(str(error))
                texts.append(completion.text)
                continue
            return WrittenRubric(
                rubric, completion.text, prompt.order, tuple(rejected), prompt.cut_responses, usage, tuple(texts)
            )
        raise InvalidRubricError(tuple(rejected), usage, tuple(texts))
