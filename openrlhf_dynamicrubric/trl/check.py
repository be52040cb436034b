"""`dynamicrubric check`: what would stop a phase, or spoil its result, found before anything is trained."""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from openrlhf_dynamicrubric import phases, processes
from openrlhf_dynamicrubric.anchors import read_anchors, read_prompts, read_response_sets
from openrlhf_dynamicrubric.errors import ConfigError, DynamicRubricError
from openrlhf_dynamicrubric.files import write_atomic
from openrlhf_dynamicrubric.phases import SAMPLE, TRAIN_GENERATOR, TRAIN_POLICY, Phase
from openrlhf_dynamicrubric.run_config import RunConfig, run_config
from openrlhf_dynamicrubric.trl import resume
from openrlhf_dynamicrubric.trl.arguments import (
    GeneratorArguments,
    PolicyArguments,
    SampleArguments,
    TrainingArguments,
    parse,
    parse_training,
)
from openrlhf_dynamicrubric.trl.checks import check_enough_prompts, check_generator_args
from openrlhf_dynamicrubric.trl.training import policy_rows

BYTES = {"bfloat16": 2, "float16": 2}
"""A number in a saved model, where its type is not float32."""


@dataclass
class Findings:
    """What a check found.

    Args:
        errors: what has to be changed, one sentence each.
        notes: what a user should know.
        model_bytes: size of the model that the phase will write.
        checkpoint_bytes: size of all checkpoints that will lie side by side while it runs.
    """

    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    model_bytes: int = 0
    checkpoint_bytes: int = 0

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """An error inside is one of the findings, so that others are found too."""
        try:
            yield
        except DynamicRubricError as error:
            if str(error) not in self.errors:
                self.errors.append(str(error))


def main(argv: Sequence[str]) -> int:
    """`dynamicrubric check RUN [kinds]`: what the run's next phases would find.

    Returns:
        The exit code: 0, or 1 where something has to be changed.
    """
    parser = argparse.ArgumentParser(prog="dynamicrubric check", description=__doc__)
    parser.add_argument("run", type=Path, help="run folder, with its run.json")
    parser.add_argument("--result", type=Path, help="JSON file for the findings")
    parser.add_argument("kinds", nargs="*", type=_kind, metavar="kind", help=f"{', '.join(phases.KINDS)}; default all")
    options = parser.parse_args(argv)
    config = run_config(phases.read_json(options.run / "run.json").get("config", {}))
    findings = check_run(config, options.kinds or phases.KINDS)
    if options.result and processes.main_rank():
        write_atomic(options.result, json.dumps({"errors": findings.errors, "notes": findings.notes}) + "\n")
    return say(findings)


def _kind(word: str) -> str:
    if word not in phases.KINDS:  # `choices` of argparse would also have to hold the empty list
        raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(phases.KINDS)}")
    return word


def say(findings: Findings) -> int:
    """Findings on the terminal.

    Returns:
        The exit code: 0, or 1 where something has to be changed.
    """
    from rich.console import Console

    console = Console(stderr=True)
    for text, style in (*((note, "yellow") for note in findings.notes), *((error, "red") for error in findings.errors)):
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)
    if not findings.errors:
        console.print("nothing stands in the way", highlight=False)
    return 1 if findings.errors else 0


def check_run(config: RunConfig, kinds: Sequence[str]) -> Findings:
    """The next phase of each kind that is not complete, and the room on the disk.

    Args:
        config: of the run.
        kinds: of phases.
    """
    findings = Findings()
    pending = [phase for phase in phases.plan(config) if not phase.complete]
    sizes: dict[str, Findings] = {}
    for kind in kinds:
        phase = next((phase for phase in pending if phase.kind == kind), None)
        if phase is None:
            continue
        found = sizes[kind] = Findings()
        with found.collecting():
            check = {SAMPLE: _sample_phase, TRAIN_GENERATOR: _generator_phase, TRAIN_POLICY: _policy_phase}[kind]
            sizes[kind] = found = check(config, phase)
        findings.errors += [f"{kind}: {error}" for error in found.errors]
        findings.notes += [f"{kind}: {note}" for note in found.notes]
    if not findings.errors:
        with findings.collecting():
            check_disk(config, pending, sizes)
    return findings


def check_sample(arguments: SampleArguments) -> Findings:
    """The anchors file and the policy."""
    findings = Findings()
    with findings.collecting():
        read_anchors(arguments.anchors, limit=arguments.max_prompts)
    _check_model(findings, arguments.model)
    return findings


def check_generator(arguments: TrainingArguments, response_sets: Path, *, prompts: int | None = None) -> Findings:
    """Options, response sets, generator and verifier.

    Args:
        arguments: of `train-generator`.
        response_sets: the file.
        prompts: how many it will have, where it is not written yet.
    """
    findings = Findings(notes=resume.resume_notes(arguments.trainer))
    with findings.collecting():
        if prompts is None:
            prompts = len(read_response_sets(response_sets, minimum_anchors=2))
        check_generator_args(arguments.trainer, arguments.judges)
        check_enough_prompts(prompts, arguments.trainer)
        resume.check_exact_resume(arguments.trainer, prompts)
    parameters = _check_model(findings, str(arguments.model.model_name_or_path))
    _check_model(findings, arguments.judges.verifier, judge=True)
    _estimate(findings, arguments, parameters, prompts or 0)
    return findings


def check_policy(arguments: TrainingArguments, *, generator_comes: bool = False) -> Findings:
    """Options, prompts, policy, generator and verifier.

    Args:
        arguments: of `train-policy`.
        generator_comes: the generator is not trained yet, so it cannot be looked at.
    """
    findings = Findings(notes=resume.resume_notes(arguments.trainer))
    own, rows = arguments.own, []
    with findings.collecting():
        rows = policy_rows(read_prompts(own.prompts, limit=own.max_prompts), chat=own.chat_prompts)
        check_enough_prompts(len(rows), arguments.trainer)
        resume.check_exact_resume(arguments.trainer, len(rows))
    parameters = _check_model(findings, str(arguments.model.model_name_or_path))
    if not generator_comes:
        _check_model(findings, arguments.judges.generator, judge=True)
    _check_model(findings, arguments.judges.verifier, judge=True)
    _estimate(findings, arguments, parameters, len(rows))
    return findings


def check_disk(config: RunConfig, pending: Sequence[Phase], sizes: dict[str, Findings]) -> None:
    """Nothing, if what the pending phases will write fits on the disk.

    Args:
        config: of the run.
        pending: phases that are not complete.
        sizes: what one phase of a kind writes.

    Raises:
        ConfigError: it does not; the message gives both sizes and what takes the room.
    """
    counts = {kind: sum(phase.kind == kind for phase in pending) for kind in sizes}
    models = sum(counts[kind] * found.model_bytes for kind, found in sizes.items())
    checkpoints = [found.checkpoint_bytes * (counts[kind] if config.keep_checkpoints else 1) for kind, found in sizes.items()]
    together = sum(checkpoints) if config.keep_checkpoints else max(checkpoints, default=0)
    free = shutil.disk_usage(config.folder).free
    if models + together > free:
        raise ConfigError(
            f"the disk of {config.folder} has {_size(free)} free, and the run needs about {_size(models + together)}: "
            f"{_size(models)} for models, {_size(together)} for checkpoints with optimiser states; make room, use another "
            "output_dir, or set save_total_limit, or keep_checkpoints: false"
        )


def _sample_phase(config: RunConfig, phase: Phase) -> Findings:
    (arguments,) = parse(_flags(phase), SampleArguments)
    comes = _comes(config, arguments.model)
    findings = check_sample(SampleArguments(**{**vars(arguments), "model": config.models.policy}) if comes else arguments)
    if not comes:
        _check_architecture(findings, arguments.model, config.models.policy, "the policy")
    return findings


def _generator_phase(config: RunConfig, phase: Phase) -> Findings:
    arguments = parse_training(_flags(phase), GeneratorArguments)
    response_sets = Path(arguments.own.response_sets)
    prompts = None if response_sets.exists() else len(read_anchors(config.anchors, limit=config.max_anchor_prompts))
    _replace_coming(config, arguments, config.models.generator)
    findings = check_generator(arguments, response_sets, prompts=prompts)
    _check_architecture(findings, str(arguments.model.model_name_or_path), config.models.generator, "the generator")
    _check_checkpoint(findings, phase, arguments)
    return findings


def _policy_phase(config: RunConfig, phase: Phase) -> Findings:
    arguments = parse_training(_flags(phase), PolicyArguments)
    _replace_coming(config, arguments, config.models.policy)
    comes = _comes(config, arguments.judges.generator)
    findings = check_policy(arguments, generator_comes=comes)
    if comes:
        _check_model(findings, config.models.generator, judge=True)
    else:
        _check_architecture(findings, arguments.judges.generator, config.models.generator, "the generator")
    _check_architecture(findings, str(arguments.model.model_name_or_path), config.models.policy, "the policy")
    _check_checkpoint(findings, phase, arguments)
    return findings


def _flags(phase: Phase) -> list[str]:
    phase.write_options()
    return ["--config", str(phase.folder / phases.OPTIONS)]


def _comes(config: RunConfig, model: str) -> bool:
    """The model is one that an earlier phase of the run will write."""
    return config.folder in Path(model).parents and not Path(model).exists()


def _replace_coming(config: RunConfig, arguments: TrainingArguments, begun_with: str) -> None:
    """In place of a model that is still to come, the one that it will be trained from: of the same size and shape."""
    if _comes(config, str(arguments.model.model_name_or_path)):
        arguments.model.model_name_or_path = begun_with


def _check_model(findings: Findings, name: str, *, judge: bool = False) -> int:
    """The model can be loaded; how many parameters it has, 0 where it cannot."""
    from openrlhf_dynamicrubric.llm.checkpoint import check_checkpoint, load_tokenizer
    from openrlhf_dynamicrubric.llm.embedded import resolve_model
    from openrlhf_dynamicrubric.llm.transformers_chat import ChatEncoder, answer_tokens

    if not processes.main_rank():
        return 0
    with findings.collecting():
        path = resolve_model(name)
        parameters = check_checkpoint(path)
        if judge:
            tokenizer = load_tokenizer(path)
            ChatEncoder(tokenizer, name=name).check_chat_template()
            answer_tokens(tokenizer, name=name)
        return parameters
    return 0


def _check_architecture(findings: Findings, name: str, begun_with: str, what: str) -> None:
    from openrlhf_dynamicrubric.llm.embedded import resolve_model

    if name != begun_with and (Path(name) / "config.json").is_file():
        with findings.collecting():
            resume.check_same_architecture(Path(name), resolve_model(begun_with), what=what)


def _check_checkpoint(findings: Findings, phase: Phase, arguments: TrainingArguments) -> None:
    from openrlhf_dynamicrubric.llm.embedded import resolve_model

    checkpoint = resume.newest_checkpoint(phase.folder)
    if checkpoint:
        with findings.collecting():
            model = resolve_model(str(arguments.model.model_name_or_path))
            resume.check_same_architecture(checkpoint.folder, model, what=f"checkpoint-{checkpoint.step}")


def _estimate(findings: Findings, arguments: TrainingArguments, parameters: int, prompts: int) -> None:
    """Sizes on disk: weights, and with them in a checkpoint two moments of Adam, under DeepSpeed a float32 copy as well."""
    number = BYTES.get(str(arguments.model.dtype), 4)
    state = 12 if arguments.trainer.deepspeed or number == 2 else 8
    with findings.collecting():
        saves = len(resume.saved_steps(arguments.trainer, prompts)) if prompts else 0
        limit = arguments.trainer.save_total_limit
        kept = saves if not limit else min(saves, limit + 1)  # a new one is written before an old one goes
        findings.model_bytes = parameters * number
        findings.checkpoint_bytes = parameters * (number + state) * kept


def _size(count: int) -> str:
    """Bytes in words.

    Example:
        >>> _size(1_500_000_000), _size(20_000)
        ('1.5 GB', '20 kB')
    """
    power = min(4, int(math.log10(count) // 3)) if count >= 1000 else 0
    return f"{count / 1000**power:.3g} {('bytes', 'kB', 'MB', 'GB', 'TB')[power]}"
