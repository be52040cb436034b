"""A language model that follows a script, in place of a real one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.llm.base import Completion, Judgement
from openrlhf_dynamicrubric.types import Prompt, Usage

RUBRIC = json.dumps({"items": [{"criterion": "Contains a", "weight": 5}, {"criterion": "Contains b", "weight": 3}]})


def judged_text(shared: str) -> str:
    """The response inside a verifier's question."""
    return shared.split("<response ", 1)[1].split(">\n", 1)[1].rsplit("\n</response ", 1)[0]


def criterion_of(question: str) -> str:
    """The criterion inside a verifier's question."""
    return json.loads(question.split("Criterion: ", 1)[1].split("\n", 1)[0])


def contains_last_letter(response: str, criterion: str) -> float:
    """P(yes) = 0.9 if the response contains the criterion's last letter, else 0.1."""
    return 0.9 if criterion[-1] in response else 0.1


class ScriptedModel:
    """Writes what `write` returns and answers what `judge` returns; either may raise or return a ModelCallError."""

    name = "scripted"

    def __init__(
        self,
        write: Callable[[Prompt, int], str | Completion] = lambda prompt, seed: RUBRIC,
        judge: Callable[[str, str], float | ModelCallError] = contains_last_letter,
    ) -> None:
        self.write = write
        self.judge = judge
        self.written: list[Prompt] = []
        self.asked: list[tuple[str, str]] = []

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
        self.written.append(prompt)
        answer = self.write(prompt, seed)
        if isinstance(answer, Completion):
            return answer
        return Completion(answer, "stop", Usage(calls=1, prompt_tokens=10, completion_tokens=5))

    async def yes_probabilities(self, shared: str, questions: Sequence[str]) -> Judgement:
        answers = []
        for question in questions:
            self.asked.append((judged_text(shared), criterion_of(question)))
            answers.append(self.judge(*self.asked[-1]))
        return Judgement(tuple(answers), Usage(calls=len(questions), prompt_tokens=20 * len(questions)))
