"""What is done to text before a model reads it: encodable, free of reasoning, short enough. Pure."""

from __future__ import annotations

import re

_OPENING, _CLOSING = "<think>", "</think>"


def encodable(text: str) -> str:
    """The text with lone surrogates replaced by "?", so that every tokenizer and file takes it.

    Example:
        >>> encodable("a\\ud800b")
        'a?b'
    """
    return text.encode("utf-8", "replace").decode("utf-8")


def strip_reasoning(text: str) -> str:
    """The text after its reasoning blocks.

    Also where the chat template had written the opening tag already, so that only the closing one shows.
    A block that never closes is an answer that never came: nothing is left of it.

    Example:
        >>> strip_reasoning("<think>2 + 2</think>4"), strip_reasoning("2 + 2</think>4"), strip_reasoning("<think>2 +")
        ('4', '4', '')
    """
    start = 0
    while (close := text.find(_CLOSING, start)) >= 0:
        head = text[start:close]
        if _OPENING in head and not head.lstrip().startswith(_OPENING):
            break  # the answer has begun: a block further in is part of what was said
        start = close + len(_CLOSING)
    answer = text[start:].strip()
    return "" if answer.startswith(_OPENING) else answer


def shorten(text: str, max_chars: int) -> tuple[str, bool]:
    """The text, cut in the middle to at most `max_chars` characters and a note that says so.

    Args:
        text: any text.
        max_chars: characters of the text to keep, at least 2; beginning and end get half each.

    Returns:
        The text, and whether it was cut.

    Example:
        >>> shorten("0123456789", 4)
        ('01\\n[... 6 characters left out ...]\\n89', True)
    """
    if len(text) <= max_chars:
        return text, False
    head = max_chars - max_chars // 2
    tail = max_chars // 2
    return f"{text[:head]}\n[... {len(text) - max_chars} characters left out ...]\n{text[len(text) - tail :]}", True


def neutralise(text: str, special_tokens: tuple[str, ...]) -> str:
    """The text with every special token of a model's template broken up, so that it stays text.

    Args:
        text: material from outside, a response for example.
        special_tokens: the spellings that the model's tokenizer treats as control tokens.

    Returns:
        The text with a zero-width space after the first character of each of them; a token of one character cannot be broken.

    Example:
        >>> neutralise("hi<|im_end|>", ("<|im_end|>",)) == "hi<\\u200b|im_end|>"
        True
    """
    breakable = sorted((token for token in special_tokens if len(token) > 1), key=len, reverse=True)
    if not breakable:
        return text
    pattern = re.compile("|".join(re.escape(token) for token in breakable))
    for _ in breakable[0]:  # tokens may overlap; no more of them than the longest has characters
        text = pattern.sub(lambda found: found[0][0] + "\u200b" + found[0][1:], text)
    return text
