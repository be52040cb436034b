"""What models write: the unambiguous is taken, everything else is refused with its reason, and nothing else ever escapes."""

from __future__ import annotations

import json
import random
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_dynamicrubric.errors import RubricParseError
from openrlhf_dynamicrubric.parsing import parse_rubric, rubric_schema
from openrlhf_dynamicrubric.types import Rubric

ITEMS = [{"criterion": "Names a date", "weight": 5}, {"criterion": 'Avoids "filler", lists, }', "weight": 2}]
EXPECTED = [("Names a date", 5), ('Avoids "filler", lists, }', 2)]
VALID = json.dumps({"items": ITEMS})


def parsed(text: str, *, max_items: int = 8) -> list[tuple[str, int]]:
    return [(item.criterion, item.weight) for item in parse_rubric(text, max_items=max_items).items]


def reason(text: str, *, max_items: int = 8) -> str:
    with pytest.raises(RubricParseError) as caught:
        parse_rubric(text, max_items=max_items)
    return str(caught.value)


def one(criterion: Any, weight: Any = 3) -> str:
    return json.dumps({"items": [{"criterion": criterion, "weight": weight}]})


# Accepted


@pytest.mark.parametrize(
    "text",
    [
        VALID,
        json.dumps({"items": ITEMS}, indent=2),
        f"  \n{VALID}\n ",
        f"```json\n{VALID}\n```",
        f"```\n{VALID}\n```",
        f"Here is the rubric:\n\n{VALID}\n\nIt weighs dates most.",
        f"I looked at [all] responses (see {{above}}) and item [1].\n{VALID}",
        f'It says "5" tall", twice: {VALID}',
        f"<think>Dates matter. {{not json}}</think>\n{VALID}",
        f"<think>A draft: {one('Something else')}</think>\n\n```json\n{VALID}\n```",
        f"Dates matter, I think.</think>{VALID}",
        f"<think>one</think><think>two</think>{VALID}",
        f"{VALID}\nThat is: {VALID}",
        json.dumps(ITEMS),
        f"```json\n{json.dumps(ITEMS, indent=1)}\n```",
        VALID.replace("5}", "5,}").replace("2}]}", "2 , }\n, ],\n}"),
        VALID.replace('"weight": 5', '"weight": 5.0').replace('"weight": 2', '"weight": "2"'),
        VALID.replace('"weight": 5', '"weight": 5e0').replace('"weight": 2', '"weight": " 2 "'),
        json.dumps({"title": "A rubric", "items": ITEMS}),
        "\ufeff" + VALID,
        VALID.replace("Names a date", "\\n Names \\u2028 a\\t\\tdate "),
        VALID.replace("Names a date", "Names\u2028\u00a0a\u3000date"),
    ],
)
def test_what_models_write_is_taken(text: str) -> None:
    assert parsed(text) == EXPECTED


def test_text_inside_strings_is_left_alone() -> None:
    for criterion in ("Shows [1, 2, ] as it is", 'Writes {"a": 1,}', "Ends in \\", 'Quotes "a", ] and }', "Has a, }", "Line[{"):
        text = json.dumps({"items": [{"criterion": criterion, "weight": 1}]})
        assert parsed(text) == [(criterion, 1)]
        assert parsed(f'Odd quote " here, ] {text.replace("1}", "1,}")} and " there') == [(criterion, 1)]


def test_as_many_items_as_allowed() -> None:
    items = [{"criterion": f"Names fact {number}", "weight": 1} for number in range(8)]
    assert len(parsed(json.dumps(items))) == 8
    assert reason(json.dumps(items), max_items=7) == "expected 1 to 7 items, got 8"


# Refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "no rubric found"),
        (" \n\t ", "no rubric found"),
        ("I cannot write a rubric.", "no rubric found"),
        ("[1] and {x} and [] and {} and [2, 3]", "no rubric found"),
        (json.dumps({"rubric": {"items": ITEMS}}), "no rubric found"),
        (f"<think>never ends {VALID}", "no rubric found"),
        (json.dumps({"items": []}), "expected 1 to 8 items, got 0"),
        (json.dumps({"items": None}), "items must be a list, got None"),
        (json.dumps({"items": {"0": ITEMS[0]}}), "items must be a list, got {'0': "),
        (json.dumps({"items": "Names a date"}), "items must be a list, got 'Names a date'"),
        (json.dumps({"items": ["Names a date"]}), "item 1 must be an object, got 'Names a date'"),
        (json.dumps({"items": [ITEMS[0], None]}), "item 2 must be an object, got None"),
        (json.dumps({"items": [{"weight": 3}]}), "item 1 has no criterion"),
        (json.dumps({"items": [ITEMS[0], {"criterion": "Names a place"}]}), "item 2 has no weight"),
        (json.dumps([{"name": "Names a date"}]), "item 1 has no criterion"),
        (json.dumps([{**ITEMS[0], "negated": True}]), "item 1 has an unknown key 'negated'"),
        (one(""), "criterion of item 1 must be text that says something, got ''"),
        (one(" \n "), "criterion of item 1 must be text that says something, got ' \\n '"),
        (one("\u200b\u2060"), "criterion of item 1 must be text that says something, got"),
        (one("..."), "criterion of item 1 must be text that says something, got '...'"),
        (one(7), "criterion of item 1 must be text that says something, got 7"),
        (one(None), "criterion of item 1 must be text that says something, got None"),
        (one(["Names a date"]), "criterion of item 1 must be text that says something, got ['Names a date']"),
        (one("Names a date", True), "weights must be whole numbers 1..5, got True in item 1"),
        (one("Names a date", False), "weights must be whole numbers 1..5, got False in item 1"),
        (one("Names a date", 0), "weights must be whole numbers 1..5, got 0 in item 1"),
        (one("Names a date", 6), "weights must be whole numbers 1..5, got 6 in item 1"),
        (one("Names a date", -3), "weights must be whole numbers 1..5, got -3 in item 1"),
        (one("Names a date", 2.5), "weights must be whole numbers 1..5, got 2.5 in item 1"),
        (one("Names a date", 3.0000001), "weights must be whole numbers 1..5, got 3.0000001 in item 1"),
        (one("Names a date", "high"), "weights must be whole numbers 1..5, got 'high' in item 1"),
        (one("Names a date", "33"), "weights must be whole numbers 1..5, got '33' in item 1"),
        (one("Names a date", "３"), "weights must be whole numbers 1..5, got '３' in item 1"),
        (one("Names a date", None), "weights must be whole numbers 1..5, got None in item 1"),
        (one("Names a date", [3]), "weights must be whole numbers 1..5, got [3] in item 1"),
        (one("Names a date", float("nan")), "NaN is not a number that JSON knows"),
        (one("Names a date", float("inf")), "Infinity is not a number that JSON knows"),
        (one("Names a date", float("-inf")), "-Infinity is not a number that JSON knows"),
        (one("Names a date", 10**19), "weights must be whole numbers 1..5, got 10000000000000000000 in item 1"),
        (one("Names a date", 10**4000), "is too large a number"),
        (one("Names a date").replace("3}", "3" * 9000 + "}"), "is too large a number"),
        (one("Names a date").replace("3}", "1e999}"), "weights must be whole numbers 1..5, got inf in item 1"),
        (VALID[:-1] + ', "items": []}', "key 'items' stands twice in one object"),
        (VALID.replace('"weight": 5', '"weight": 5, "weight": 5'), "key 'weight' stands twice in one object"),
        (VALID.replace('"weight": 5', '"weight": 5, "criterion": "x"'), "key 'criterion' stands twice in one object"),
        (f"{VALID} or rather {one('Names a place')}", "2 rubrics in one text, and they differ"),
        (f"{VALID} or rather {json.dumps(ITEMS[:1])}", "2 rubrics in one text, and they differ"),
        (VALID.replace("5}", "5,,}"), "JSON is malformed"),
        (VALID.replace("[{", "[,{"), "JSON is malformed"),
        ("{'items': [{'criterion': 'Names a date', 'weight': 5}]}", "JSON is malformed"),
        (VALID.replace("5},", "5}"), "JSON is malformed"),
        (VALID.replace('"criterion": "Names', "criterion: Names"), "JSON is malformed"),
        (VALID.replace("5}", "5 // most important\n}"), "JSON is malformed"),
        (VALID.replace("}]}", "]}"), "JSON is cut off"),
        (VALID.replace("Names a date", "Names\na date"), "JSON is malformed: Invalid control character"),
        (VALID.replace("Names a date", "Names \\a date"), "JSON is malformed: Invalid \\escape"),
        (VALID + " {", "JSON is cut off"),
        (VALID + "\n[", "JSON is cut off"),
    ],
)
def test_anything_else_is_refused_with_its_reason(text: str, expected: str) -> None:
    assert expected in reason(text)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Names a date", "Names a date"),
        ("Names a date", "names A DATE"),
        ("Names a date", " Names  a\tdate "),
        ("Names a date", "Names a date."),
        ("Names a date", "Ｎａｍｅｓ　ａ　ｄａｔｅ"),
        ("Names a café", unicodedata.normalize("NFD", "Names a café")),
        ("Names the STRASSE", "names the Straße"),
        ("Names a date", "Names a\u200b date\ufeff"),
        ("Names \ud800", "Names \ud801"),
    ],
)
def test_the_same_criterion_twice_is_refused(first: str, second: str) -> None:
    text = json.dumps(
        {"items": [{"criterion": "A third", "weight": 1}] + [{"criterion": c, "weight": 2} for c in (first, second)]}
    )
    assert reason(text).startswith("items 2 and 3 are the same criterion: ")


@pytest.mark.parametrize("second", ["Names a data", "Names a place", "Names > 1 date", "Names < 1 date", "Uses C++", "Uses C"])
def test_other_criteria_are_not_the_same(second: str) -> None:
    others = [c for c in ("Names a date", "Names > 1 date", "Names < 1 date", "Uses C++", "Uses C") if c != second]
    assert len(parsed(json.dumps([{"criterion": c, "weight": 2} for c in [*others, second]]))) == len(others) + 1


@pytest.mark.parametrize(
    "criterion",
    [
        "Response 3 cites a source",
        "Is better than response #2",
        "Is as clear as Response B",
        "Follows the second response",
        "Agrees with candidate 2",
        "Candidate A is more polite",
        "Shares the tone of responses 1 and 3",
        "Like Response no. 4, names a date",
        "Like response number 5",
        "Response One is shorter",
        "Explains more than response two",
        "response_2 style",
        "response-4 style",
        "Unlike response (2), gives a reason",
        "As in Response [7]",
        "Reads like response3",
        "The 3rd response names a date",
        "Is like the last response",
        "Matches the first candidate response",
        "Has response B's tone",
        "Has Response 1's tone",
        "Follows response 12.",
        "Ｒｅｓｐｏｎｓｅ ３ names a date",
        "Is like RESPONSE 4",
    ],
)
def test_naming_a_response_by_position_is_refused(criterion: str) -> None:
    assert reason(one(criterion)).startswith("item 1 names a response by its position: ")


@pytest.mark.parametrize(
    "criterion",
    [
        "Says what an HTTP response 404 means",
        "Gives the answer 42",
        "Promises responses within 24 hours",
        "A response to the question comes first",
        "Says it in a response I could send",
        "Puts the response in 3 sentences",
        "Keeps the response 3 sentences long",
        "Keeps the response 5-sentence short",
        "Keeps the response two to three sentences long",
        "Keeps the response (2 to 3 sentences) short",
        "Keeps the response 2-3 short paragraphs long",
        "Keeps the response 1,000 words at most",
        "Makes the response 20% shorter",
        "Offers an emergency response 24/7",
        "States the first response time",
        "Names the last response team",
        "Tells first responders what to do",
        "Asks for a third-party response",
        "Describes the immune response T cells mount",
        "Names the response U.S. officials gave",
        "Predicts the response one would expect",
        "Avoids a response that isn't polite",
        "Limits the response to 5 items",
        "Describes a phase 2 response",
        "Names the first candidate to win",
        "Response: a clear structure",
        "Responds in the second person",
    ],
)
def test_other_numbers_are_no_positions(criterion: str) -> None:
    assert parsed(one(criterion)) == [(criterion, 3)]


def test_a_long_value_is_shortened_in_the_message() -> None:
    assert len(reason(one("x" * 100_000, "y" * 100_000))) < 300
    assert len(reason(json.dumps({"items": [[[[[["deep"] * 1000] * 10] * 10]]]}))) < 300


# Truncation


@pytest.mark.parametrize(
    "text",
    [
        VALID,
        json.dumps(ITEMS),
        f"```json\n{json.dumps({'items': ITEMS}, indent=2)}\n```\nThat is all.",
        f"<think>A draft: {one('Something else')}</think>{VALID}",
        f"Some [prose] first. {VALID.replace('5}', '5,}')}",
    ],
)
def test_no_prefix_gives_a_shorter_rubric(text: str) -> None:
    whole = parse_rubric(text, max_items=8)
    end = text.rindex("}") + 1 if text.rstrip().endswith(("}", "`", ".")) else text.rindex("]") + 1
    refused = 0
    for cut in range(len(text)):
        try:
            rubric = parse_rubric(text[:cut], max_items=8)
        except RubricParseError:
            refused += 1
            continue
        if "</think>" in text and cut < text.index("</think>"):
            # The reasoning block is open: what it holds is no answer.
            pytest.fail(f"a prefix of reasoning gave {rubric}")
        assert rubric == whole
        assert cut >= end
    assert refused >= end - 1


# Size and depth


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "{" * 200_000,
        '{"' * 200_000,
        '{"a":' * 200_000,
        '[{"a":' * 200_000,
        "[1," * 300_000,
        "[ " * 500_000,
        "{ " * 500_000,
        '[1,"' * 200_000,
        '["a",' * 200_000,
        '\\"' * 400_000,
        '{"' + '\\"' * 400_000,
        '"' * 800_000,
        "," * 800_000,
        '{"items": [' + "," * 800_000,
        '{"items": [' + ", " * 400_000 + "]}",
        "{}" * 400_000,
        "[]" * 400_000,
        "[{}]" * 200_000,
        "{x} [y] " * 100_000,
        "{" + ",".join(f'"{number}": 0' for number in range(80_000)) + "}",
        "[" + "9" * 800_000 + "]",
        '{"items": [' + "9" * 800_000 + "]}",
        '{"items": ' + "[" * 15 + "]" * 15 + "}",
        "<think>" * 120_000,
        "</think>" * 120_000,
        "<think></think>" * 60_000,
        "response " * 100_000,
        one("response " * 100_000, 9),
        one("response# " * 80_000, 9),
        one("\u0301" * 200_000),
        one("a " * 400_000, 9),
        one("a" + "\u200b" * 200_000, 9),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_a_megabyte_of_anything_ends(text: str) -> None:
    """Quadratic work on these would go on far beyond the limit; the work that is needed takes a second or two."""
    with pytest.raises(RubricParseError):
        parse_rubric(text, max_items=8)


def test_a_long_valid_text_is_read() -> None:
    assert parsed("prose [x] {y} " * 60_000 + VALID + " more prose" * 10_000) == EXPECTED
    assert parsed(f"{VALID}\n" * 2_000) == EXPECTED


def test_depth_does_not_depend_on_the_callers_stack() -> None:
    def deep(levels: int) -> str:
        return reason('{"items": ' + "[" * 500 + "]" * 500 + "}") if levels == 0 else deep(levels - 1)

    assert deep(0) == deep(600) == "JSON is nested too deeply"


def test_lone_surrogates_are_replaced() -> None:
    assert parsed(one("Names \ud800 a date")) == [("Names ? a date", 3)]
    assert parsed(VALID + "\udfff") == EXPECTED


# Fuzz


def check_independently(rubric: Rubric, max_items: int) -> None:
    assert type(rubric) is Rubric
    assert 1 <= len(rubric.items) <= max_items
    seen = set()
    for item in rubric.items:
        assert type(item.weight) is int
        assert item.weight in {1, 2, 3, 4, 5}
        assert type(item.criterion) is str
        assert item.criterion == item.criterion.strip() != ""
        assert "  " not in item.criterion
        assert "\n" not in item.criterion
        assert re.search(r"\w", item.criterion)
        item.criterion.encode()
        assert not re.search(r"\bresponse \d (is|names)\b", item.criterion.lower())
        seen.add("".join(unicodedata.normalize("NFKC", item.criterion).casefold().split()))
    assert len(seen) == len(rubric.items)


def try_to_parse(text: str, max_items: int = 4) -> bool:
    try:
        rubric = parse_rubric(text, max_items=max_items)
    except RubricParseError:
        return False
    check_independently(rubric, max_items)
    return True


SEEDS = [
    VALID,
    json.dumps(ITEMS),
    f"```json\n{json.dumps({'items': ITEMS}, indent=1)}\n```",
    f"<think>hm {one('Draft')}</think>Fine: {VALID}",
    one("Response 2 is fine", 4),
    one("Ein Ｄatum\u2028é \ud800", "4"),
]
SPLICES = (
    *('"', "{", "}", "[", "]", ",", ":", "\\", "\\u", "//", "'", "-", "{}", "[]", "```", "\n", " "),
    *("5", "0", "6", "1.0", "1e400", "9" * 30, "NaN", "Infinity", "null", "true"),
    *('"items"', '"criterion"', '"weight"', "<think>", "</think>", "response 3", "Names a date"),
    *("\u2028", "\ud800", "\u200b", "\x00"),
)


def mutate(text: str, dice: random.Random) -> str:
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8))):
        start, end = sorted(dice.randrange(len(text) + 1) for _ in range(2))
        end = min(end, start + dice.choice((0, 1, 1, 2, 20)))
        new = dice.choice(
            (
                "",
                dice.choice(SPLICES),
                dice.choice(SPLICES),
                chr(dice.randrange(0x110000)),
                text[end : end + dice.randrange(30)],
            )
        )
        text = text[:start] + new + text[end:]
    return text


def test_ten_thousand_mutations_give_a_valid_rubric_or_the_reason() -> None:
    dice = random.Random(20260720)
    accepted = sum(try_to_parse(mutate(dice.choice(SEEDS), dice)) for _ in range(10_000))
    assert 500 < accepted < 9_500  # both sides are tried


@settings(max_examples=500)
@given(st.text())
def test_any_text_gives_a_rubric_or_the_reason(text: str) -> None:
    try_to_parse(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["items", "criterion", "weight", "x"]), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=500)
@given(json_values, st.text(max_size=6), st.text(max_size=6))
def test_any_json_gives_a_rubric_or_the_reason(value: Any, before: str, after: str) -> None:
    try_to_parse(before + json.dumps(value) + after)
    try_to_parse(json.dumps({"items": [{"criterion": "Names a date", "weight": value}]}))
    try_to_parse(json.dumps({"items": [{"criterion": value, "weight": 1}, value]}))


criteria = st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).map(lambda text: f"Has {text}")


@given(st.lists(st.tuples(criteria, st.integers(1, 5)), min_size=1, max_size=8), st.booleans(), st.integers(0, 4))
def test_what_the_schema_allows_comes_back(items: list[tuple[str, int]], escape: bool, indent: int) -> None:
    value = {"items": [{"criterion": f"{number} {text}", "weight": weight} for number, (text, weight) in enumerate(items)]}
    text = json.dumps(value, ensure_ascii=escape, indent=indent or None)
    expected = [(" ".join(item["criterion"].split()), item["weight"]) for item in value["items"]]
    try:
        assert parsed(text) == expected
    except RubricParseError as error:
        assert "by its position" in str(error) or "</think>" in text  # noqa: PT017


def test_schema_says_what_the_parser_takes() -> None:
    schema = rubric_schema(max_items=3, max_criterion_chars=50)
    items = schema["properties"]["items"]
    assert (items["minItems"], items["maxItems"]) == (1, 3)
    assert items["items"]["properties"]["weight"]["enum"] == [1, 2, 3, 4, 5]
    assert items["items"]["properties"]["criterion"] == {"type": "string", "minLength": 1, "maxLength": 50}
    assert set(items["items"]["required"]) == {"criterion", "weight"}
    assert schema["required"] == ["items"]
    assert schema["additionalProperties"] is items["items"]["additionalProperties"] is False
    json.dumps(schema)
