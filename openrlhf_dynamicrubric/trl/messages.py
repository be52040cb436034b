"""Prompts and completions as TRL passes them, to what a judge reads. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from openrlhf_dynamicrubric import prompts, text
from openrlhf_dynamicrubric.errors import DataError
from openrlhf_dynamicrubric.types import Message, Prompt

REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where a parsed completion keeps its reasoning block."""


def read_prompt(prompt: Any, where: str) -> Prompt:
    """The prompt with every content as text.

    Args:
        prompt: text, or chat turns.
        where: what an error message calls it.

    Returns:
        The text as it is; or the turns, text parts joined and a missing content made empty.

    Raises:
        DataError: neither text nor turns, or a part that is not text.
    """
    if isinstance(prompt, str):
        return prompt
    if not prompt:
        raise DataError(f"{where} has no turns")
    return [{**turn, "content": content_text(turn, where)} for turn in _turns(prompt, where)]


def response_text(completion: Any, where: str, *, strip_reasoning: bool) -> str:
    """The text of one completion.

    Text stays as it is. One assistant turn is its content. Several turns (tool calls and their results, say) become one JSON
    object a line, which no content can forge.

    Args:
        completion: text, or chat turns.
        where: what an error message calls it.
        strip_reasoning: leave reasoning blocks out; else they stand before the content.

    Returns:
        What a judge reads.

    Raises:
        DataError: see `read_prompt`.
    """
    if isinstance(completion, str):
        return completion
    turns = [_without_reasoning(turn, where, strip_reasoning) for turn in _turns(completion, where)]
    if len(turns) == 1:  # a call of a tool is part of what was said
        only = turns[0]
        return only["content"] if set(only) <= {"role", "content"} else json.dumps(dict(only), ensure_ascii=False, default=str)
    return prompts.conversation_text(turns) if turns else ""


def content_text(turn: Mapping[str, Any], where: str) -> str:
    """The content of one turn as text.

    Raises:
        DataError: a part that is not text.

    Example:
        >>> content_text({"role": "user", "content": [{"type": "text", "text": "Hello"}]}, "prompt 0")
        'Hello'
    """
    content = turn.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise DataError(f"{where}: content must be text or a list of parts, got {type(content).__name__}")
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
            raise DataError(f"{where} has a part of type {kind!r}; judges read text only")
    return "".join(part["text"] for part in content)


def _turns(turns: Any, where: str) -> Sequence[Mapping[str, Any]]:
    if isinstance(turns, Sequence) and all(isinstance(turn, Mapping) and isinstance(turn.get("role"), str) for turn in turns):
        return turns
    raise DataError(f"{where} must be text, or a list of turns with role and content, got {type(turns).__name__}")


def _without_reasoning(turn: Mapping[str, Any], where: str, strip: bool) -> Message:
    # Keys without a value are the dataset's or the parser's padding, not something that was said.
    kept = {key: value for key, value in turn.items() if key not in REASONING_KEYS and value}
    content = content_text(turn, where)
    if turn["role"] == "assistant":
        reasoning = next((turn[key] for key in REASONING_KEYS if turn.get(key)), None)
        if strip:
            content = text.strip_reasoning(content)
        elif reasoning:
            content = f"<think>\n{reasoning}\n</think>\n\n{content}"
    return {**kept, "content": content}
