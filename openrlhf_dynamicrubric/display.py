"""Text from models made safe to look at: what a page or a terminal would act upon shows as its code."""

from __future__ import annotations

import re
from pathlib import Path

_UNSEEN = re.compile(
    "\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f"  # controls, escape sequences of terminals among them
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction marks, widthless characters
    "\ud800-\udfff\ufffe\uffff\U000e0000-\U000e007f]"  # halves of pairs, and tags, which hide text in text
)


def visible(text: str, before: str = "⟨", after: str = "⟩") -> str:
    """The text with every control character, direction mark and other unseen character as its code.

    Args:
        text: anything, from anybody.
        before: put before a code.
        after: put after a code.

    Returns:
        Text that is encodable as UTF-8 and of which nothing is hidden; tabs and line ends stay, "\\r\\n" becomes "\\n".

    Example:
        >>> visible("safe\\u202e\\x1b[31m")
        'safe⟨U+202E⟩⟨U+001B⟩[31m'
    """
    return _UNSEEN.sub(lambda found: f"{before}U+{ord(found[0]):04X}{after}", text.replace("\r\n", "\n"))


def one_line(text: str, limit: int) -> str:
    """The beginning of a text on one line, of at most `limit` characters.

    Example:
        >>> one_line("two\\n  lines", 6)
        'two l…'
    """
    flat = visible(" ".join(text[: 4 * limit].split()))
    return flat if len(flat) <= limit and len(text) <= 4 * limit else flat[: limit - 1].rstrip() + "…"


def model_name(name: str) -> str:
    """What to call a model: its hub name as it is, of a folder the last part, which tells nothing of the machine.

    Example:
        >>> model_name("org/model"), model_name("/some/where/model"), model_name("embedded")
        ('org/model', 'model', 'embedded')
    """
    path = Path(name)
    return path.name if path.is_absolute() or (path.name != name and path.is_dir()) else name


def alike(message: str) -> str:
    """What messages have in common that differ in numbers and quoted words only.

    Example:
        >>> alike("got 7 in item 2") == alike("got 12 in item 1")
        True
    """
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "…", message)[:500]
