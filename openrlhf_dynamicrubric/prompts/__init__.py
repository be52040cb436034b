"""The generator's and the verifier's templates, one file each, and the one function that fills them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib import resources

from openrlhf_dynamicrubric.text import encodable
from openrlhf_dynamicrubric.types import Prompt

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}")
TEMPLATES = ("generator", "generator_static", "verifier", "verifier_question")


@cache
def template(name: str) -> str:
    """The text of one template, as it stands in its file."""
    return resources.files(__name__).joinpath(f"{name}.txt").read_text(encoding="utf-8")


def fill(name: str, **values: str) -> str:
    """One template with every placeholder filled in a single pass, so that `{{x}}` inside a value stays text.

    Args:
        name: one of `TEMPLATES`.
        **values: a text for each placeholder of the template, no more and no fewer.

    Returns:
        The filled text, encodable as UTF-8.

    Raises:
        ValueError: a placeholder without a value, or a value without a placeholder.
    """
    text = template(name)
    wanted = set(_PLACEHOLDER.findall(text))
    if wanted != set(values):
        raise ValueError(f"template {name} takes {sorted(wanted)}, got {sorted(values)}")
    return encodable(_PLACEHOLDER.sub(lambda found: values[found[1]], text))


@cache
def version() -> str:
    """Twelve hex digits that change when any template does; kept in every record."""
    return hashlib.sha256("\0".join(template(name) for name in TEMPLATES).encode()).hexdigest()[:12]


def marker_code(*texts: str) -> str:
    """A code for the markers around texts that none of the texts contains; the same texts give the same code.

    Example:
        >>> marker_code("some text") in "some text"
        False
    """
    everything = "\0".join(encodable(text) for text in texts)
    code = hashlib.sha256(everything.encode()).hexdigest()[:8]
    while code in everything.lower():
        code = hashlib.sha256((code + everything).encode()).hexdigest()[:8]
    return code


def conversation_text(prompt: Prompt) -> str:
    """What the policy was asked (or answered, over several turns), as one text that a judge reads.

    Plain text and a single turn stay as they are. Several turns become one JSON object a line, which no content can forge.

    Example:
        >>> conversation_text([{"role": "user", "content": "Hi"}])
        'Hi'
        >>> print(conversation_text([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}]))
        {"role": "user", "content": "Hi"}
        {"role": "assistant", "content": "Yes?"}
    """
    if isinstance(prompt, str):
        return prompt
    if len(prompt) == 1 and isinstance(prompt[0].get("content"), str):
        return prompt[0]["content"]
    return "\n".join(json.dumps(dict(turn), ensure_ascii=False, default=str) for turn in prompt)


def fenced_responses(responses: Sequence[str], code: str) -> str:
    """Responses between numbered markers, in the given order."""
    return "\n\n".join(
        f"<response {number} {code}>\n{text}\n</response {number} {code}>" for number, text in enumerate(responses, start=1)
    )
