"""What the generator, the verifier and the sampler ask of a language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.types import Prompt, Usage


@dataclass(frozen=True, slots=True)
class Completion:
    """Text that a model wrote.

    Args:
        text: without special tokens.
        finish_reason: "stop" where the model ended by itself, "length" where max_tokens cut it off.
        usage: cost of this call.
    """

    text: str
    finish_reason: Literal["stop", "length"]
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Answers to several yes/no questions about one text.

    Args:
        probabilities: for each question P(yes) / (P(yes) + P(no)) of the first answer token, in [0, 1]; or the error
            of its call.
        usage: cost of all of them.
    """

    probabilities: tuple[float | ModelCallError, ...]
    usage: Usage = field(default_factory=Usage)


class LanguageModel(Protocol):
    """A model behind any backend. Calls are awaited concurrently; a backend batches or bounds them as it sees fit.

    The result of a call depends on its own arguments only, never on the calls that happen to run beside it.
    """

    @property
    def name(self) -> str:
        """What records call this model."""
        ...

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        seed: int = 0,
        json_schema: Mapping[str, Any] | None = None,
    ) -> Completion:
        """One sampled completion.

        Args:
            prompt: chat turns, put through the model's chat template; or plain text, continued as it is.
            max_tokens: most tokens to write, at least 1.
            temperature: at least 0; 0 is greedy.
            top_p: nucleus, in (0, 1].
            seed: the same seed and arguments give the same text.
            json_schema: the text must match it; without it the text is free.

        Returns:
            The completion.

        Raises:
            ModelCallError: no usable answer.
        """
        ...

    async def yes_probabilities(self, shared: str, questions: Sequence[str]) -> Judgement:
        """The probability of yes for each question, asked in one user turn behind one shared text.

        Args:
            shared: beginning of the user turn, the same for all questions, so that its computation can be shared.
            questions: what follows it, one text a question; distinct.

        Returns:
            One probability, or the error of its call, for each question.
        """
        ...
