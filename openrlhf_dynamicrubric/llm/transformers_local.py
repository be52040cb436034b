"""A language model in this process, through transformers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from openrlhf_dynamicrubric.errors import ModelCallError
from openrlhf_dynamicrubric.llm.base import Completion, Judgement
from openrlhf_dynamicrubric.llm.transformers_chat import ChatEncoder, answer_tokens
from openrlhf_dynamicrubric.llm.transformers_decode import Row, decode
from openrlhf_dynamicrubric.llm.transformers_verdicts import AnswerTokens, plain_log_odds
from openrlhf_dynamicrubric.types import Prompt, Usage

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from openrlhf_dynamicrubric.llm.constrained import SchemaGuide


class TransformersModel:
    """Completions and verdicts of one model in this process."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str,
        batch_tokens: int = 16_384,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.batch_tokens = batch_tokens
        self.chat = ChatEncoder(tokenizer, name=name)
        self._executor = concurrent.futures.ThreadPoolExecutor(1)
        eos = model.generation_config.eos_token_id if model.generation_config else None
        ids = [*(eos if isinstance(eos, list) else [eos]), tokenizer.eos_token_id]
        self._eos_token_ids = frozenset(token for token in ids if token is not None)
        self._pad = tokenizer.pad_token_id or 0
        self._answers = None

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        dtype: str = "auto",
        device: str | torch.device | None = None,
        batch_tokens: int = 16_384,
        name: str | None = None,
    ) -> TransformersModel:
        from accelerate import PartialState

        from openrlhf_dynamicrubric.llm.checkpoint import load_causal_lm, load_tokenizer

        device = PartialState().device if device is None else device
        model = load_causal_lm(path, dtype=dtype, device=device)
        return cls(model, load_tokenizer(path), name=name or str(path), batch_tokens=batch_tokens)

    def check_judge(self) -> None:
        self.chat.check_chat_template()
        self._answers = AnswerTokens(
            tuple(answer_tokens(self.tokenizer, "yes", name=self.name)),
            tuple(answer_tokens(self.tokenizer, "no", name=self.name)),
        )

    async def complete(
        self,
        prompt: Prompt,
        *,
        max_tokens: int,
        temperature: float,
        top_p: float = 1.0,
        seed: int = 0,
        json_schema: Mapping[str, Any] | None = None,
    ) -> Completion:
        def work():
            import torch

            from openrlhf_dynamicrubric.llm.constrained import SchemaGuide

            guide = SchemaGuide(self.tokenizer, json_schema, sorted(self._eos_token_ids)) if json_schema else None
            row = Row(self.chat.prompt(prompt), max_tokens, temperature, top_p, seed, guide)
            with torch.inference_mode():
                decode(self.model, [row], pad_token_id=self._pad, eos_token_ids=self._eos_token_ids)
            text = self.tokenizer.decode(row.written, skip_special_tokens=True)
            usage = Usage(calls=1, prompt_tokens=len(row.prompt), completion_tokens=len(row.written))
            return Completion(text, "stop" if row.ended else "length", usage)

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def yes_probabilities(self, shared: str, questions: Sequence[str]) -> Judgement:
        def work():
            import torch

            if self._answers is None:
                self.check_judge()
            sequences = self.chat.questions(shared, questions)
            with torch.inference_mode():
                odds = plain_log_odds(self.model, sequences, self._answers, pad_token_id=self._pad)
            usage = Usage(calls=len(questions), prompt_tokens=sum(map(len, sequences)))
            return Judgement(tuple(1 / (1 + math.exp(-x)) for x in odds), usage)

        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
