"""The embedded model at work: everything runs, nothing is claimed of its judgement."""

from __future__ import annotations

import asyncio

import pytest

from openrlhf_dynamicrubric.generator import generator_prompt
from openrlhf_dynamicrubric.llm.base import Completion, Judgement
from openrlhf_dynamicrubric.llm.load import load_model
from openrlhf_dynamicrubric.parsing import rubric_schema
from openrlhf_dynamicrubric.types import ResponseSet
from openrlhf_dynamicrubric.verifier import verifier_prompt, verifier_question
from tests.llm.support import why_invalid

RESPONSES = ("Short waves scatter more.", "It mirrors the sea.")
CRITERIA = ("Names scattering", "Is one sentence", "Avoids a wrong claim")


@pytest.mark.slow
def test_rubrics_and_verdicts() -> None:
    model = load_model("embedded")
    prompt = generator_prompt(ResponseSet("Why is the sky blue?", RESPONSES), max_items=2, max_response_chars=200, seed=0)
    schema = rubric_schema(max_items=2, max_criterion_chars=60)
    shared = [verifier_prompt("Why is the sky blue?", response, max_response_chars=200) for response in RESPONSES]

    async def everything() -> tuple[list[Completion], list[Judgement]]:
        rubrics = asyncio.gather(
            *(model.complete(prompt.messages, max_tokens=72, temperature=1.0, seed=s, json_schema=schema) for s in range(8))
        )
        questions = [verifier_question(criterion) for criterion in CRITERIA]
        verdicts = asyncio.gather(*(model.yes_probabilities(text, questions) for text in shared))
        return list(await rubrics), list(await verdicts)

    rubrics, verdicts = asyncio.run(everything())
    whole = [rubric.text for rubric in rubrics if rubric.finish_reason == "stop"]
    assert {why_invalid(text, max_items=2) for text in whole} <= {"", "same criterion"}
    assert sum(not why_invalid(text, max_items=2) for text in whole) >= 4
    assert len(set(whole)) > 1
    answers = [answer for judgement in verdicts for answer in judgement.probabilities]
    assert len(answers) == 6
    assert all(isinstance(answer, float) and 0 < answer < 1 for answer in answers)
    assert all(judgement.usage.cached_tokens > 0 for judgement in verdicts)
