"""Decoding that can only write text of a JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from openrlhf_dynamicrubric.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

_known_tokenizers: WeakKeyDictionary[Any, dict[tuple[int, ...], Any]] = WeakKeyDictionary()


class SchemaGuide:
    """What may come next in a text of one JSON schema, for any number of texts that are being written.

    Text is written in one form, `{"key": value, "key": value}`, so that no text can get lost in white space.

    Args:
        tokenizer: a fast tokenizer.
        schema: the JSON schema.
        eos_token_ids: the tokens that end a text.

    Raises:
        ConfigError: the schema is one that the grammar cannot express, or the tokenizer is not a fast one.
        MissingDependencyError: llguidance is not installed.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, schema: Mapping[str, Any], eos_token_ids: Sequence[int]) -> None:
        try:
            from llguidance import LLMatcher
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                "constrained rubrics need llguidance: pip install 'openrlhf_dynamicrubric[trl]', "
                "or set constrained_rubrics to false"
            ) from error
        self._tokenizer = _matcher_tokenizer(tokenizer, tuple(eos_token_ids))
        self._grammar = LLMatcher.grammar_from_json_schema(
            json.dumps(schema),
            overrides={"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
        )
        fault = LLMatcher.validate_grammar(self._grammar, self._tokenizer)
        if fault:
            raise ConfigError(f"the JSON schema cannot guide decoding: {fault}")
        self._eos_token_ids = list(eos_token_ids)

    def matcher(self) -> Any:
        """The state of a text of which nothing is written yet; it takes tokens by `consume_token`."""
        from llguidance import LLMatcher

        return LLMatcher(self._tokenizer, self._grammar, log_level=0)

    def allowed(self, matchers: Sequence[Any], vocabulary: int) -> NDArray[np.bool_]:
        """True where a token may come next, shape (texts, vocabulary); a text that has ended may only end again."""
        from llguidance.numpy import fill_next_token_bitmask

        bits = np.zeros((len(matchers), (self._tokenizer.vocab_size + 31) // 32), dtype=np.int32)
        stopped = []
        for row, matcher in enumerate(matchers):
            if matcher.is_stopped():
                stopped.append(row)
            else:
                fill_next_token_bitmask(matcher, bits, row)
        known = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :vocabulary]
        allowed = np.zeros((len(matchers), vocabulary), dtype=np.bool_)  # models may have more logits than tokens
        allowed[:, : known.shape[1]] = known
        allowed[np.ix_(stopped, self._eos_token_ids)] = True
        return allowed


class JsonSchemaProcessor:
    """A logits processor for `generate`: tokens that would leave the schema get -inf, row by row.

    One matcher a row follows what the row has written. A call whose input does not continue the last one starts anew, so
    one object serves any number of `generate` calls, one after another. A row that has ended may only end again.

    Args:
        guide: what may come next.
    """

    def __init__(self, guide: SchemaGuide) -> None:
        self._guide = guide
        self._matchers: list[Any] = []
        self._seen: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores with every token that would break the schema at -inf.

        Args:
            input_ids: prompt and what has been written, shape (rows, length).
            scores: of the next token, shape (rows, vocabulary).

        Returns:
            New scores, same shape.
        """
        import torch

        if self._continues(input_ids):
            for matcher, token in zip(self._matchers, input_ids[:, -1].tolist(), strict=True):
                if not matcher.is_stopped():
                    matcher.consume_token(token)
        else:
            self._matchers = [self._guide.matcher() for _ in input_ids]
        self._seen = input_ids
        allowed = torch.from_numpy(self._guide.allowed(self._matchers, scores.shape[1])).to(scores.device)
        return scores.masked_fill(~allowed, float("-inf"))

    def _continues(self, input_ids: torch.Tensor) -> bool:
        import torch

        if self._seen is None or input_ids.shape[0] != self._seen.shape[0]:
            return False
        return input_ids.shape[1] == self._seen.shape[1] + 1 and torch.equal(input_ids[:, :-1], self._seen)


def _matcher_tokenizer(tokenizer: PreTrainedTokenizerBase, eos_token_ids: tuple[int, ...]) -> Any:
    """The tokenizer in llguidance's form: slow to make, so kept for as long as the tokenizer lives."""
    from llguidance.hf import from_tokenizer

    known = _known_tokenizers.setdefault(tokenizer, {})
    if eos_token_ids not in known:
        try:
            known[eos_token_ids] = from_tokenizer(tokenizer, eos_token=list(eos_token_ids))  # type: ignore[arg-type]
        except ValueError as error:
            raise ConfigError(f"constrained decoding needs a fast tokenizer: {error}") from error
    return known[eos_token_ids]
