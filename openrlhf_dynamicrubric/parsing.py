"""Model text to a valid rubric, or the reason why not. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from openrlhf_dynamicrubric.errors import RubricParseError
from openrlhf_dynamicrubric.text import strip_reasoning
from openrlhf_dynamicrubric.types import Rubric, RubricItem

MIN_WEIGHT, MAX_WEIGHT = 1, 5

_ORDINAL = r"(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last|\d{1,3}(?:st|nd|rd|th))"
_POSITION = re.compile(
    rf"\bresponses?\s*(?:#|no\.?\s*|number\s+)?\d{{1,2}}\b"
    rf"|\bresponses?\s*(?:#|no\.?\s*|number\s+)?(?-i:[A-Z])\b(?!['’])"
    rf"|\b{_ORDINAL}\s+(?:response|candidate)\b"
    rf"|\bcandidate\s*(?:#|no\.?\s*|number\s+)?\d{{1,2}}\b",
    re.IGNORECASE,
)
_TRAILING_COMMA = re.compile(r'"(?:[^"\\]|\\.)*"|,(?=\s*[}\]])', re.DOTALL)
_OBJECT_START = re.compile(r'\{\s*["}]|\[\s*[\[{"\]]')


def rubric_schema(*, max_items: int, max_criterion_chars: int) -> dict[str, Any]:
    """JSON schema of the text that `parse_rubric` reads, for constrained decoding.

    Args:
        max_items: most items, at least 1.
        max_criterion_chars: longest criterion, in characters.

    Returns:
        The schema as a dictionary. What a schema cannot say (distinct criteria, none naming a response) `parse_rubric` checks.
    """
    item = {
        "type": "object",
        "properties": {
            "criterion": {"type": "string", "minLength": 1, "maxLength": max_criterion_chars},
            "weight": {"type": "integer", "enum": list(range(MIN_WEIGHT, MAX_WEIGHT + 1))},
        },
        "required": ["criterion", "weight"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"items": {"type": "array", "items": item, "minItems": 1, "maxItems": max_items}},
        "required": ["items"],
        "additionalProperties": False,
    }


def parse_rubric(text: str, *, max_items: int) -> Rubric:
    """The one rubric that a model's text holds.

    Takes what models write where the meaning is beyond doubt: a reasoning block first, prose or a code fence around the JSON,
    trailing commas, the list of items without its object, a weight written 3.0 or "3". Truncated text is never repaired.

    Source: ours (the paper does not define an invalid rubric). A rubric is valid when it has 1 to max_items items, weights are
    whole numbers 1..5, criteria are not empty, differ after case and space are normalised, and none names a response by
    position: the verifier sees one response at a time, and the anchors are other responses.

    Args:
        text: what the generator wrote.
        max_items: most items, at least 1.

    Returns:
        The rubric; runs of white space inside a criterion become one space.

    Raises:
        RubricParseError: anything else; the message says what and where.

    Example:
        >>> parse_rubric('Sure! {"items": [{"criterion": "Names a date", "weight": 2},]}', max_items=8).items
        (RubricItem(criterion='Names a date', weight=2),)
    """
    rubrics = [value for value in _json_values(strip_reasoning(text)) if _looks_like_rubric(value)]
    if not rubrics:
        raise RubricParseError('no rubric found: expected {"items": [{"criterion": ..., "weight": 1..5}, ...]}')
    items = [_items_of(rubric) for rubric in rubrics]
    if any(other != items[0] for other in items[1:]):
        raise RubricParseError(f"{len(rubrics)} different rubrics in one text; expected one")
    if not 1 <= len(items[0]) <= max_items:
        raise RubricParseError(f"expected 1 to {max_items} items, got {len(items[0])}")
    rubric = Rubric(tuple(_parse_item(item, number) for number, item in enumerate(items[0], start=1)))
    _check_distinct(rubric)
    return rubric


def _json_values(text: str) -> Iterator[Any]:
    """Each JSON object or list in the text, outermost first; prose between them is passed over."""
    text = _TRAILING_COMMA.sub(lambda found: found[0] if found[0] != "," else "", text)
    decoder = json.JSONDecoder(object_pairs_hook=_no_repeated_keys, parse_constant=_no_constants)
    position = 0
    while (start := re.compile(r"[{\[]").search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, start.start())
        except RecursionError:
            raise RubricParseError("JSON is nested too deeply") from None
        except RubricParseError:
            raise
        except ValueError as error:
            if _OBJECT_START.match(text, start.start()):
                raise RubricParseError(f"JSON is malformed or cut off: {error}") from None
            position = start.end()  # a bracket in prose
        else:
            yield value


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    keys = [key for key, _ in pairs]
    repeated = {key for key in keys if keys.count(key) > 1}
    if repeated:
        raise RubricParseError(f"key {min(repeated)!r} stands twice in one object")
    return dict(pairs)


def _no_constants(name: str) -> Any:
    raise RubricParseError(f"{name} is not a number that JSON knows")


def _looks_like_rubric(value: Any) -> bool:
    if isinstance(value, dict):
        return "items" in value
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _items_of(rubric: Any) -> list[Any]:
    items = rubric["items"] if isinstance(rubric, dict) else rubric
    if not isinstance(items, list):
        raise RubricParseError(f"items must be a list, got {_show(items)}")
    return items


def _parse_item(item: Any, number: int) -> RubricItem:
    if not isinstance(item, dict):
        raise RubricParseError(f"item {number} must be an object, got {_show(item)}")
    for key in ("criterion", "weight"):
        if key not in item:
            raise RubricParseError(f"item {number} has no {key}")
    unknown = sorted(set(item) - {"criterion", "weight"})
    if unknown:
        raise RubricParseError(f"item {number} has an unknown key {unknown[0]!r}")
    criterion = item["criterion"]
    if not isinstance(criterion, str) or not criterion.strip():
        raise RubricParseError(f"criterion of item {number} must be text that is not empty, got {_show(criterion)}")
    criterion = " ".join(criterion.split())
    named = _POSITION.search(criterion)
    if named:
        raise RubricParseError(f"item {number} names a response by its position: {named[0]!r}")
    return RubricItem(criterion, _parse_weight(item["weight"], number))


def _parse_weight(weight: Any, number: int) -> int:
    if isinstance(weight, str) and re.fullmatch(r"\s*[1-5]\s*", weight):
        return int(weight)
    if not isinstance(weight, bool) and isinstance(weight, int | float) and weight in range(MIN_WEIGHT, MAX_WEIGHT + 1):
        return int(weight)
    raise RubricParseError(f"weights must be whole numbers {MIN_WEIGHT}..{MAX_WEIGHT}, got {_show(weight)} in item {number}")


def _check_distinct(rubric: Rubric) -> None:
    seen: dict[str, int] = {}
    for number, criterion in enumerate(rubric.criteria, start=1):
        key = "".join(criterion.casefold().split()).rstrip(".")
        if key in seen:
            raise RubricParseError(f"items {seen[key]} and {number} are the same criterion: {_show(criterion)}")
        seen[key] = number


def _show(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else shown[:77] + "..."
