"""Prompts to tokens, where text from outside stays text; and the tokens that say yes and no."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.errors import ModelCallError, ModelLoadError
from openrlhf_dynamicrubric.text import encodable, neutralise
from openrlhf_dynamicrubric.types import Message, Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_TAGS = {"<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"}
"""Control tokens that some tokenizers list as ordinary added ones."""


class ChatEncoder:
    """Turns prompts into token ids with one tokenizer.

    Args:
        tokenizer: of the model; with a chat template if chats are to be encoded.
        name: what messages call the model.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, name: str) -> None:
        self.tokenizer = tokenizer
        self.name = name
        added = [(token.content, token.special) for token in tokenizer.added_tokens_decoder.values()]
        control = {text for text, special in added if special or text in _TAGS} | set(tokenizer.all_special_tokens)
        self.special_tokens = tuple(sorted(control))

    def check_chat_template(self) -> None:
        """Passes where the tokenizer can put chat turns together.

        Raises:
            ModelLoadError: it has no chat template.
        """
        if self.tokenizer.chat_template is None:
            raise ModelLoadError(
                f"{self.name} has no chat template, so it cannot judge: name an instruction-tuned model, "
                "or set tokenizer.chat_template and save the tokenizer again"
            )

    def prompt(self, prompt: Prompt) -> list[int]:
        """Chat turns put through the chat template; plain text as it is.

        Raises:
            ModelCallError: the template refuses these turns, or there is nothing to continue.
        """
        if isinstance(prompt, str):
            tokens = self.tokenizer(encodable(prompt))["input_ids"]
        else:
            [tokens] = self._encode([self._chat(prompt)])
        if not tokens:
            raise ModelCallError("the prompt is empty: there is nothing to continue")
        return list(tokens)

    def questions(self, shared: str, questions: Sequence[str]) -> list[list[int]]:
        """One user turn a question, `shared` first, whose answer begins with the next token: without a thinking block."""
        return self._encode(
            [self._chat([{"role": "user", "content": shared + question}], enable_thinking=False) for question in questions]
        )

    def _chat(self, messages: Sequence[Message], **options: Any) -> str:
        from jinja2 import TemplateError

        self.check_chat_template()
        turns = [{key: self._text(value) for key, value in message.items()} for message in messages]
        try:
            text = self.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        except TemplateError as error:
            raise ModelCallError(f"the chat template of {self.name} refuses the prompt: {error}") from error
        return str(text)

    def _text(self, value: str) -> str:
        return neutralise(encodable(value), self.special_tokens) if isinstance(value, str) else value

    def _encode(self, texts: list[str]) -> list[list[int]]:
        if not texts:
            return []
        return self.tokenizer(texts, add_special_tokens=False)["input_ids"]  # type: ignore[return-value]


@dataclass(frozen=True, slots=True)
class AnswerTokens:
    """The token ids that spell yes and no, at least one each."""

    yes: tuple[int, ...]
    no: tuple[int, ...]


def answer_tokens(tokenizer: PreTrainedTokenizerBase, *, name: str) -> AnswerTokens:
    """Every single token that spells yes or no: lower case, capitalised or in capitals, white space around it or none.

    Args:
        tokenizer: whose vocabulary is looked through.
        name: what messages call the model.

    Returns:
        The token ids.

    Raises:
        ModelLoadError: no token spells one of the words, so that the first token of an answer cannot be read.
    """
    return AnswerTokens(_spelling(tokenizer, "yes", name=name), _spelling(tokenizer, "no", name=name))


def _spelling(tokenizer: PreTrainedTokenizerBase, word: str, *, name: str) -> tuple[int, ...]:
    spellings = {word, word.capitalize(), word.upper()}
    special = set(tokenizer.all_special_ids)
    likely = [
        token
        for text, token in tokenizer.get_vocab().items()
        if text.lower().endswith(word) and len(text) < len(word) + 4 and token not in special
    ]
    tokens = tuple(sorted(token for token in likely if str(tokenizer.decode([token])).strip() in spellings))
    if not tokens:
        raise ModelLoadError(f"the tokenizer of {name} has no single token for {word!r}, so its verdicts cannot be read")
    return tokens
