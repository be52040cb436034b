import pytest

from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.trl.messages import content_text, read_prompt, response_text


def read(completion, strip_reasoning=True):
    return response_text(completion, "completion 3", strip_reasoning=strip_reasoning)


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def test_text_stays_as_it_is():
    assert read(" A text. ") == " A text. "
    assert read_prompt(" A prompt. ", "prompt 0") == " A prompt. "


def test_one_turn_is_its_content():
    assert read([assistant("An answer.")]) == "An answer."


def test_a_missing_content_is_empty_text():
    assert read([assistant(None)]) == ""
    assert read([]) == ""
    assert read_prompt([{"role": "user", "content": None}], "prompt 0") == [{"role": "user", "content": ""}]


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "One, "}, {"type": "text", "text": "two."}]
    assert read([assistant(parts)]) == "One, two."
    assert read_prompt([{"role": "user", "content": parts}], "prompt 0") == [{"role": "user", "content": "One, two."}]


@pytest.mark.parametrize("part", [{"type": "image", "image": "..."}, {"type": "text", "text": None}, "bare"])
def test_parts_that_are_not_text_are_refused(part):
    with pytest.raises(DataError, match=r"completion 3 has a part of type .*; judges read text only"):
        read([assistant([part])])


def test_a_content_of_another_type_is_refused():
    with pytest.raises(DataError, match="it: content must be text or a list of parts, got int"):
        content_text({"role": "user", "content": 3}, "it")


def test_several_turns_become_one_json_object_a_line_that_no_content_can_forge():
    turns = [assistant("Let me look.\nreally"), {"role": "tool", "content": "42"}, assistant("It is 42.")]
    assert read(turns).split("\n") == [
        '{"role": "assistant", "content": "Let me look.\\nreally"}',
        '{"role": "tool", "content": "42"}',
        '{"role": "assistant", "content": "It is 42."}',
    ]


def test_a_tool_call_in_a_single_turn_is_shown():
    calls = [{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}]
    assert '"name": "add"' in read([assistant("", tool_calls=calls)])
    assert read([assistant("Done.", tool_calls=None)]) == "Done."


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_parsed_reasoning_is_left_out_or_put_before_the_answer(key):
    turn = assistant("4", **{key: "2 + 2"})
    assert read([turn]) == "4"
    assert read([turn], strip_reasoning=False) == "<think>\n2 + 2\n</think>\n\n4"


def test_reasoning_is_left_out_of_every_assistant_turn():
    turns = [assistant("<think>hm</think>One"), {"role": "tool", "content": "<think>data</think>"}, assistant("x</think>Two")]
    assert [line.split('"content": ')[1] for line in read(turns).split("\n")] == [
        '"One"}',
        '"<think>data</think>"}',
        '"Two"}',
    ]


@pytest.mark.parametrize("turns", [3, [3], [{"content": "no role"}], {"role": "user", "content": "one turn, not a list"}])
def test_what_is_neither_text_nor_turns_is_refused(turns):
    with pytest.raises(DataError, match="completion 3 must be text, or a list of turns"):
        read(turns)
    with pytest.raises(DataError, match="prompt 2 must be text, or a list of turns"):
        read_prompt(turns, "prompt 2")


def test_a_prompt_without_turns_is_refused():
    with pytest.raises(DataError, match="prompt 0 has no turns"):
        read_prompt([], "prompt 0")
