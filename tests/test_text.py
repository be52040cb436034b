"""Reasoning, length and special tokens of what judges read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_dynamicrubric.text import encodable, neutralise, shorten, strip_reasoning


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("", ""),
        ("  4 \n", "4"),
        ("<think>2 + 2</think>4", "4"),
        ("\n<think>\n2 + 2\n</think>\n\n4\n", "4"),
        ("2 + 2</think>4", "4"),
        ("</think>4", "4"),
        ("<think></think>4", "4"),
        ("<think>a</think><think>b</think>4", "4"),
        ("<think>a</think>\n<think>b</think>\n4", "4"),
        ("a</think><think>b</think>4", "4"),
        ("<think>a <think>b</think> c</think>4", "4"),
        ("<think>never ends", ""),
        ("<think>a</think><think>never ends", ""),
        ("<think>a</think>", ""),
        ("Write <think>x</think> around it.", "Write <think>x</think> around it."),
        ("<think>a</think>Write <think>x</think> around it.", "Write <think>x</think> around it."),
        ("Write <think> first.", "Write <think> first."),
        ("a < b, think > c", "a < b, think > c"),
    ],
)
def test_reasoning_is_left_out(text: str, answer: str) -> None:
    assert strip_reasoning(text) == answer


pieces = st.lists(st.sampled_from(["<think>", "</think>", "a", " ", "\n", "<think", "think>"]), max_size=12).map("".join)


@given(pieces)
def test_stripping_twice_is_stripping_once(text: str) -> None:
    once = strip_reasoning(text)
    assert strip_reasoning(once) == once
    assert text.strip().endswith(once)


@given(st.text().filter(lambda text: "think>" not in text))
def test_text_without_reasoning_stays(text: str) -> None:
    assert strip_reasoning(text) == text.strip()


@pytest.mark.timeout(200)
def test_stripping_does_not_take_quadratic_work() -> None:
    """Which would go on far beyond the limit; the work that is needed takes a second or two."""
    assert strip_reasoning("<think></think>" * 1_000_000 + "x") == "x"
    assert strip_reasoning("</think>" * 2_000_000 + "x") == "x"


@given(st.text(st.characters()), st.integers(2, 20))
def test_shortening_keeps_both_ends(text: str, max_chars: int) -> None:
    short, cut = shorten(text, max_chars)
    assert cut == (len(text) > max_chars)
    if not cut:
        assert short == text
    else:
        head, tail = max_chars - max_chars // 2, max_chars // 2
        assert short.startswith(text[:head] + "\n[... ")
        assert short.endswith(" left out ...]\n" + text[-tail:])
        assert f"[... {len(text) - head - tail} characters left out ...]" in short


def test_shortening_at_the_limit() -> None:
    assert shorten("0123", 4) == ("0123", False)
    assert shorten("01234", 4) == ("01\n[... 1 characters left out ...]\n34", True)
    assert shorten("01234", 3) == ("01\n[... 2 characters left out ...]\n4", True)


@given(st.text(st.characters()))
def test_encodable_changes_lone_surrogates_only(text: str) -> None:
    clean = encodable(text)
    clean.encode()
    assert len(clean) == len(text)
    assert all(new == old or (new == "?" and "\ud800" <= old <= "\udfff") for new, old in zip(clean, text, strict=True))


def test_special_tokens_become_text() -> None:
    tokens = ("<|im_end|>", "<|im_start|>", "</s>")
    text = neutralise("a<|im_end|><|im_start|>system</s>", tokens)
    assert text == "a<\u200b|im_end|><\u200b|im_start|>system<\u200b/s>"
    assert neutralise("a<|im_end|>", ()) == "a<|im_end|>"
    assert neutralise("a<|im_end|", tokens) == "a<|im_end|"
    assert neutralise("a|b", ("", "|")) == "a|b"


@pytest.mark.parametrize("text", ["abc", "abcbc", "aabcc", "xababcbcx"])
def test_overlapping_special_tokens_are_all_broken(text: str) -> None:
    tokens = ("ab", "bc", "abc")
    broken = neutralise(text, tokens)
    assert not any(token in broken for token in tokens)
    assert broken.replace("\u200b", "") == text


@given(st.text("ab<|>", max_size=30), st.lists(st.text("ab<|>", min_size=2, max_size=4), max_size=5))
def test_no_special_token_is_left(text: str, tokens: list[str]) -> None:
    broken = neutralise(text, tuple(tokens))
    assert not any(token in broken for token in tokens)
    assert broken.replace("\u200b", "") == text
