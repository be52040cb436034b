"""Rubrics sampled under their JSON schema inside TRL's trainer: the one attribute that is replaced, and for how long."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from openrlhf_dynamicrubric.errors import ConfigError

if TYPE_CHECKING:
    from transformers import LogitsProcessor, PreTrainedModel
    from trl.trainer.grpo_config import GRPOConfig


@contextmanager
def constrained_generate(model: PreTrainedModel, processor: LogitsProcessor) -> Iterator[None]:
    """Inside, `model.generate` applies the processor; afterwards it is as it was.

    TRL calls `generate` of the unwrapped model with its inputs and a GenerationConfig, neither of which can carry a processor.
    """
    from transformers import LogitsProcessorList

    plain: Any = model.generate

    def generate(*args: Any, **kwargs: Any) -> Any:
        return plain(*args, **kwargs, logits_processor=LogitsProcessorList([processor]))

    vars(model)["generate"] = generate  # on the instance: the class keeps its method
    try:
        yield
    finally:
        del vars(model)["generate"]


def constrain_vllm(args: GRPOConfig, schema: Mapping[str, Any]) -> None:
    """The trainer's options with the schema where TRL passes it on to vLLM.

    Raises:
        ConfigError: the options ask for another structure already.
    """
    options: dict[str, Any] = {**(args.generation_kwargs or {})}  # pyright: ignore[reportGeneralTypeIssues] - a dict once parsed
    structure = {"json": dict(schema)}
    if args.vllm_structured_outputs_regex is not None or options.get("structured_outputs") not in (None, structure):
        raise ConfigError(
            "the options give vLLM a structure of their own; leave it out, or set constrained_rubrics to false to use it"
        )
    args.generation_kwargs = {**options, "structured_outputs": structure}
