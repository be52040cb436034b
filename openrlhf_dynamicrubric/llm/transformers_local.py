"""A language model in this process, through transformers."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.errors import ConfigError
from openrlhf_dynamicrubric.llm.base import Completion, Judgement
from openrlhf_dynamicrubric.llm.calls import Call, CallQueue
from openrlhf_dynamicrubric.llm.transformers_chat import AnswerTokens, ChatEncoder, answer_tokens
from openrlhf_dynamicrubric.llm.transformers_completions import CompletionRequest, answer_completions
from openrlhf_dynamicrubric.llm.transformers_judgements import JudgementRequest, answer_judgements
from openrlhf_dynamicrubric.types import Prompt

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from openrlhf_dynamicrubric.llm.constrained import SchemaGuide


class TransformersModel:
    """Completions and verdicts of one model in this process, a `llm.base.LanguageModel`.

    Calls that wait at the same time are computed in batches on one worker thread of the device, so that the event loop
    stays free. A call's result depends on its own arguments only: rows of a batch do not see each other, and each draws
    with its own noise. What remains is rounding: a row's logits differ by some 1e-6 with its batch in float32, by up to
    0.1 in half precision, where two nearly equal tokens may then change places.

    The object cannot be pickled and belongs to one process; name the model and load it again in the other.

    Args:
        model: belongs to this object from now on: put into eval mode, not to be trained.
        tokenizer: a fast one, with a chat template if chats are to be completed or judged.
        name: what records call the model.
        batch_tokens: most tokens, padding included, in one forward pass.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, *, name: str, batch_tokens: int = 16_384
    ) -> None:
        from transformers import GenerationConfig

        from openrlhf_dynamicrubric.llm.transformers_forward import keeps_keys_only

        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.batch_tokens = batch_tokens
        self.chat = ChatEncoder(tokenizer, name=name)
        self.pad_token_id = int(tokenizer.pad_token_id or 0)  # type: ignore[arg-type]
        self.eos_token_ids = _eos_token_ids(model, tokenizer)
        self.model.generation_config = GenerationConfig()  # no penalty or cut of the checkpoint's own reaches a draw
        self.pads = keeps_keys_only(model.config)
        self.shares_prefixes: bool | None = None
        self._answer_tokens: AnswerTokens | None = None
        self._guides: dict[str, SchemaGuide] = {}
        self._guard = threading.Lock()
        self._calls = CallQueue(self._handle, str(model.device))

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
        """The model and tokenizer of a folder or hub, on a device.

        Args:
            path: a folder, or a name on a hub.
            dtype: "auto" (that of the checkpoint), "float32", "bfloat16" or "float16".
            device: None takes the one that accelerate gives this process.
            batch_tokens: most tokens, padding included, in one forward pass.
            name: what records call the model; None takes `path`.

        Returns:
            The model.

        Raises:
            ModelLoadError: it cannot be loaded whole.
            MissingDependencyError: torch, transformers or accelerate is not installed.
        """
        from openrlhf_dynamicrubric.llm.checkpoint import load_causal_lm, load_tokenizer, process_device

        tokenizer = load_tokenizer(path)
        model = load_causal_lm(path, dtype=dtype, device=process_device() if device is None else device)
        return cls(model, tokenizer, name=name or str(path), batch_tokens=batch_tokens)

    def check_judge(self) -> None:
        """Passes where the model can be asked for rubrics and verdicts.

        Raises:
            ModelLoadError: no chat template, or no single token for yes or for no.
        """
        self.chat.check_chat_template()
        self.answer_tokens  # noqa: B018

    @property
    def answer_tokens(self) -> AnswerTokens:
        """The tokens that spell yes and no.

        Raises:
            ModelLoadError: there are none for one of the words.
        """
        if self._answer_tokens is None:
            self._answer_tokens = answer_tokens(self.tokenizer, name=self.name)
        return self._answer_tokens

    @property
    def context_tokens(self) -> int | None:
        """Most tokens of prompt and answer together; None where the model has no limit of its own."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None)

    @property
    def judgement_tokens(self) -> int:
        """Most tokens of one forward pass over questions. On a CPU small batches are as fast, with less padding and memory."""
        return min(self.batch_tokens, 2048) if self.model.device.type == "cpu" else self.batch_tokens

    def guide(self, schema: Mapping[str, Any]) -> SchemaGuide:
        """The guide for a JSON schema, made once."""
        from openrlhf_dynamicrubric.llm.constrained import SchemaGuide

        key = json.dumps(schema)
        with self._guard:
            if key not in self._guides:
                self._guides[key] = SchemaGuide(self.tokenizer, schema, sorted(self.eos_token_ids))
            return self._guides[key]

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
        """One sampled completion; see `llm.base.LanguageModel.complete`.

        Raises:
            ModelCallError: the prompt does not fit into the context, or one row not into the device's memory.
            ModelLoadError: chat turns for a model without a chat template.
            ConfigError: an argument is out of its range.
        """
        if not (max_tokens >= 1 and 0 <= temperature < math.inf and 0 < top_p <= 1):
            raise ConfigError(
                "sampling takes max_tokens >= 1, temperature >= 0 and top_p in (0, 1], "
                f"got max_tokens={max_tokens}, temperature={temperature}, top_p={top_p}"
            )
        return await self._calls.ask(CompletionRequest(prompt, max_tokens, temperature, top_p, seed, json_schema))

    async def yes_probabilities(self, shared: str, questions: Sequence[str]) -> Judgement:
        """The probability of yes for each question; see `llm.base.LanguageModel.yes_probabilities`.

        Raises:
            ModelLoadError: no chat template, or no single token for yes or for no.
        """
        self.check_judge()
        return await self._calls.ask(JudgementRequest(shared, tuple(questions)))

    def _handle(self, calls: list[Call[CompletionRequest | JudgementRequest]]) -> None:
        import torch

        judgements: list[Call[JudgementRequest]] = []
        completions: list[Call[CompletionRequest]] = []
        for call in calls:
            (judgements if isinstance(call.request, JudgementRequest) else completions).append(call)  # type: ignore[arg-type]
        with torch.inference_mode():
            answer_judgements(self, judgements)
            answer_completions(self, completions)


def _eos_token_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Every token that ends a text, by the model's generation config or by the tokenizer."""
    configured = model.generation_config.eos_token_id if model.generation_config is not None else None
    ids = [*(configured if isinstance(configured, list) else [configured]), tokenizer.eos_token_id]
    return frozenset(token for token in ids if isinstance(token, int))
