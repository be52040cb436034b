"""Model text to a valid rubric, or the reason why not. Pure."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from openrlhf_dynamicrubric.errors import RubricParseError, shown
from openrlhf_dynamicrubric.text import encodable, strip_reasoning
from openrlhf_dynamicrubric.types import MAX_WEIGHT, MIN_WEIGHT, Rubric, RubricItem

MAX_DEPTH = 16
"""Brackets within brackets; a rubric has three."""

_STRING = r'"(?:[^"\\]++|\\.)*+"'
_JSON_START = re.compile(r'\{\s*+(?:["}]|\Z)|\[\s*+(?:[\[{"\]]|\Z)')
_BRACKET = re.compile(_STRING + r'|["{}\[\]]', re.DOTALL)
_TRAILING_COMMA = re.compile(_STRING + r"|,(?=\s*+[}\]])", re.DOTALL)

_ORDINAL = r"(?:first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|last|\d{1,3}(?:st|nd|rd|th))"
_NUMBER = r"(?:\d{1,2}|two|three|four|five|six|seven|eight|nine|ten)"
_MARK = r"[\s\-_#(\[<]*+(?:(?:no\.?|number|nr\.?)\s*+)?"
_UNIT = (
    r"(?:%|(?:percent|(?:short |full |clear |complete |key |main |brief )?"
    r"(?:words?|sentences?|paragraphs?|lines?|items?|steps?|points?|bullets?|sections?|parts?|pages?|characters?|tokens?|"
    r"examples?|reasons?|options?|seconds?|minutes?|hours?|days?|weeks?|months?|years?|times))\b)"
)
_AMOUNT = rf"[.,:/]?\d|\s*-?\s*{_UNIT}|\s*(?:-|–|to|or|and)\s*{_NUMBER}\s*-?\s*{_UNIT}"  # 1,000; 24/7; 3 words; 2 to 3 words
_POSITION = re.compile(
    rf"\b(?:responses?|candidates?){_MARK}{_NUMBER}\b(?!{_AMOUNT})"
    # Not "response I ...", not "response T cells ...", not "response U.S. ..."
    rf"|\b(?:responses?|candidates?){_MARK}(?-i:One|[A-HJ-Z])\b(?!\.\w|\s*cells?\b)"
    rf"|\b{_ORDINAL}\s+(?:candidate\s+)?responses?\b(?!\s*-?\s*(?:times?|teams?|units?|plans?|kits?)\b)",
    re.IGNORECASE,
)


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
    whole numbers 1..5, criteria are not empty, differ after case, space and Unicode forms are normalised, and none names a
    response by position (in English): the verifier sees one response at a time, and the anchors are other responses.

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
    values = filter(_looks_like_rubric, _json_values(strip_reasoning(text)))
    rubrics = [_parse_items(value, max_items) for value in values]
    if not rubrics:
        raise RubricParseError('no rubric found: expected {"items": [{"criterion": ..., "weight": 1..5}, ...]}')
    if any(other != rubrics[0] for other in rubrics[1:]):
        raise RubricParseError(f"{len(rubrics)} rubrics in one text, and they differ; expected one")
    return rubrics[0]


def _json_values(text: str) -> Iterator[Any]:
    """Each JSON object or list in the text, outermost first; prose between them is passed over. Takes linear time."""
    position = 0
    while (start := _JSON_START.search(text, position)) is not None:
        position = _end_of_json(text, start.start())
        json_text = _TRAILING_COMMA.sub(lambda found: found[0] if found[0] != "," else "", text[start.start() : position])
        try:
            yield json.loads(
                json_text, object_pairs_hook=_no_repeated_keys, parse_constant=_no_constant, parse_int=_short_integer
            )
        except RubricParseError:
            raise
        except ValueError as error:
            raise RubricParseError(f"JSON is malformed: {error}") from None


def _end_of_json(text: str, start: int) -> int:
    """Index behind the bracket that closes the one at `start`."""
    depth = 0
    for found in _BRACKET.finditer(text, start):
        if found[0] in ("{", "["):
            depth += 1
        elif found[0] in ("}", "]"):
            depth -= 1
        elif found[0] == '"':
            break  # a string without an end
        if depth > MAX_DEPTH:
            raise RubricParseError("JSON is nested too deeply")
        if depth == 0:
            return found.end()
    raise RubricParseError("JSON is cut off")


def _no_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RubricParseError(f"key {shown(key)} stands twice in one object")
        found[key] = value
    return found


def _no_constant(name: str) -> Any:
    raise RubricParseError(f"{name} is not a number that JSON knows")


def _short_integer(digits: str) -> int:
    if len(digits) > 20:
        raise RubricParseError(f"{shown(digits)} is too large a number")
    return int(digits)


def _looks_like_rubric(value: Any) -> bool:
    if isinstance(value, dict):
        return "items" in value
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict) for item in value)


def _parse_items(value: Any, max_items: int) -> Rubric:
    items = value["items"] if isinstance(value, dict) else value
    if not isinstance(items, list):
        raise RubricParseError(f"items must be a list, got {shown(items)}")
    if not 1 <= len(items) <= max_items:
        raise RubricParseError(f"expected 1 to {max_items} items, got {len(items)}")
    rubric = Rubric(tuple(_parse_item(item, number) for number, item in enumerate(items, start=1)))
    _check_distinct(rubric)
    return rubric


def _parse_item(item: Any, number: int) -> RubricItem:
    if not isinstance(item, dict):
        raise RubricParseError(f"item {number} must be an object, got {shown(item)}")
    for key in ("criterion", "weight"):
        if key not in item:
            raise RubricParseError(f"item {number} has no {key}")
    unknown = sorted(set(item) - {"criterion", "weight"})
    if unknown:
        raise RubricParseError(f"item {number} has an unknown key {shown(unknown[0])}")
    criterion = item["criterion"]
    if not isinstance(criterion, str) or not any(map(str.isalnum, criterion)):
        raise RubricParseError(f"criterion of item {number} must be text that says something, got {shown(criterion)}")
    criterion = " ".join(encodable(criterion).split())
    named = _POSITION.search(unicodedata.normalize("NFKC", criterion))
    if named:
        raise RubricParseError(f"item {number} names a response by its position: {named[0]!r}")
    return RubricItem(criterion, _parse_weight(item["weight"], number))


def _parse_weight(weight: Any, number: int) -> int:
    if isinstance(weight, str) and re.fullmatch(r"\s*[1-5]\s*", weight):
        return int(weight)
    if not isinstance(weight, bool) and isinstance(weight, int | float) and weight in range(MIN_WEIGHT, MAX_WEIGHT + 1):
        return int(weight)
    raise RubricParseError(f"weights must be whole numbers {MIN_WEIGHT}..{MAX_WEIGHT}, got {shown(weight)} in item {number}")


def _check_distinct(rubric: Rubric) -> None:
    seen: dict[str, int] = {}
    for number, criterion in enumerate(rubric.criteria, start=1):
        key = _normalised(criterion)
        if key in seen:
            raise RubricParseError(f"items {seen[key]} and {number} are the same criterion: {shown(criterion)}")
        seen[key] = number


def _normalised(criterion: str) -> str:
    """The criterion without what the eye does not tell apart: case, spaces, invisible characters, forms of one letter."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", criterion).casefold())
    return "".join(char for char in folded if not char.isspace() and unicodedata.category(char) != "Cf").rstrip(".")
