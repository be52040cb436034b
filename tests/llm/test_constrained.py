"""Constrained decoding as a logits processor of transformers' own generate."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from openrlhf_dynamicrubric.errors import ConfigError, MissingDependencyError
from openrlhf_dynamicrubric.llm.constrained import JsonSchemaProcessor, SchemaGuide
from openrlhf_dynamicrubric.llm.transformers_local import TransformersModel
from openrlhf_dynamicrubric.parsing import rubric_schema

SCHEMA = rubric_schema(max_items=2, max_criterion_chars=12)


def processor(model: TransformersModel, schema: dict[str, Any] = SCHEMA) -> JsonSchemaProcessor:
    return JsonSchemaProcessor(SchemaGuide(model.tokenizer, schema, sorted(model.eos_token_ids)))


def generate(
    model: TransformersModel, guide: JsonSchemaProcessor, prompts: list[str], *, seed: int = 0, **options: Any
) -> list[str]:
    torch.manual_seed(seed)
    inputs = model.tokenizer(prompts, return_tensors="pt", padding=True)
    output = model.model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        logits_processor=[guide],
        **({"do_sample": True, "max_new_tokens": 200} | options),
    )
    return [
        str(text) for text in model.tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    ]


def is_rubric(text: str) -> bool:
    items = json.loads(text)["items"]
    return 1 <= len(items) <= 2 and all(
        set(item) == {"criterion", "weight"} and item["weight"] in range(1, 6) and 1 <= len(item["criterion"]) <= 12
        for item in items
    )


def test_every_row_matches_the_schema(tiny: TransformersModel) -> None:
    texts = generate(tiny, processor(tiny), ["hi", "yes no " * 20, "Judge", "Judge"])
    assert all(is_rubric(text) for text in texts)
    assert len(set(texts)) == 4


def test_one_processor_serves_call_after_call(tiny: TransformersModel) -> None:
    guide = processor(tiny)
    for seed, prompts in enumerate((["hi"] * 3, ["hi"] * 3, ["Judge"] * 5, ["Judge", "yes no yes"])):
        assert all(is_rubric(text) for text in generate(tiny, guide, prompts, seed=seed))


def test_a_call_that_was_cut_leaves_nothing_behind(tiny: TransformersModel) -> None:
    guide = processor(tiny)
    generate(tiny, guide, ["hi"] * 2, max_new_tokens=5)
    assert all(is_rubric(text) for text in generate(tiny, guide, ["hi"] * 2))


def test_rows_that_ended_only_end_again(tiny: TransformersModel) -> None:
    guide = processor(tiny, {"type": "integer", "enum": [1, 2]})
    texts = generate(tiny, guide, ["hi"] * 6, min_new_tokens=0, max_new_tokens=20)
    assert set(texts) <= {"1", "2"}


def test_greedy_works_too(tiny: TransformersModel) -> None:
    [text] = generate(tiny, processor(tiny), ["hi"], do_sample=False)
    assert text.startswith('{"items": [{"criterion": "')


def test_logits_wider_than_the_vocabulary(tiny: TransformersModel) -> None:
    guide = processor(tiny)
    size = len(tiny.tokenizer)
    scores = guide(torch.tensor([[5]]), torch.zeros(1, size + 77))
    assert torch.isinf(scores[0, size:]).all()
    allowed = [str(tiny.tokenizer.decode([token])) for token in scores[0].isfinite().nonzero().flatten().tolist()]
    assert allowed
    assert all('{"items": ['.startswith(text) or text.startswith("{") for text in allowed)


def allowed(scores: torch.Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in scores]


def test_input_that_does_not_continue_the_last_starts_anew(tiny: TransformersModel) -> None:
    guide, size = processor(tiny), len(tiny.tokenizer)
    brace = tiny.tokenizer.convert_tokens_to_ids("{")
    first = allowed(guide(torch.tensor([[5], [6]]), torch.zeros(2, size)))
    second = allowed(guide(torch.tensor([[5, brace], [6, brace]]), torch.zeros(2, size)))
    assert second != first
    for other in ([[5, brace], [7, brace]], [[5, brace, 9, 9]] * 2, [[5, brace]], [[5, brace]] * 3, [[5]] * 3):
        guide(torch.tensor([[5], [6]]), torch.zeros(2, size))  # [[5, brace], [6, brace]] would go on from here
        assert allowed(guide(torch.tensor(other), torch.zeros(len(other), size))) == first[:1] * len(other)


def test_text_is_written_in_one_form(tiny: TransformersModel) -> None:
    number = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {
        "type": "object",
        "properties": {"items": {"type": "array", "items": number, "minItems": 2, "maxItems": 4}, "weight": number},
        "required": ["items", "weight"],
        "additionalProperties": False,
    }
    for text in generate(tiny, processor(tiny, schema), ["hi", "Judge", "yes no", "a"]):
        assert text == json.dumps(json.loads(text))


def test_the_given_scores_stay_as_they_are(tiny: TransformersModel) -> None:
    scores = torch.zeros(1, len(tiny.tokenizer))
    processor(tiny)(torch.tensor([[5]]), scores)
    assert scores.isfinite().all()


def test_several_end_tokens(tiny: TransformersModel) -> None:
    ends = [tiny.tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<|endoftext|>")]
    guide = SchemaGuide(tiny.tokenizer, {"type": "integer", "enum": [1]}, ends)
    matcher = guide.matcher()
    one = tiny.tokenizer("1")["input_ids"][0]
    assert guide.allowed([matcher], len(tiny.tokenizer))[0].nonzero()[0].tolist() == [one]
    matcher.consume_token(one)
    assert guide.allowed([matcher], len(tiny.tokenizer))[0].nonzero()[0].tolist() == sorted(ends)


@pytest.mark.parametrize("schema", [{"type": "no such type"}, {"type": "object", "unevaluatedItems": 3}, {"$ref": "#/nowhere"}])
def test_a_schema_that_no_grammar_expresses(schema: dict[str, Any], tiny: TransformersModel) -> None:
    with pytest.raises(ConfigError, match="cannot guide decoding"):
        processor(tiny, schema)


def test_a_slow_tokenizer(tiny: TransformersModel) -> None:
    class Slow:
        pass

    with pytest.raises(ConfigError, match="fast tokenizer"):
        SchemaGuide(Slow(), SCHEMA, [1])  # type: ignore[arg-type]


def test_without_llguidance_the_error_names_the_command(tiny: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*constrained_rubrics"):
        processor(tiny)


def test_importing_the_module_does_not_load_torch() -> None:
    code = "import sys, openrlhf_dynamicrubric.llm.constrained; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
