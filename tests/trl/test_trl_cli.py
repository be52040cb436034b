"""`trl grpo --config` and the example script, as a user starts them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from openrlhf_dynamicrubric.llm.embedded import embedded_model
from openrlhf_dynamicrubric.records import read_records
from tests.trl.ranks import ROOT, environment

pytestmark = pytest.mark.slow
EXAMPLE = ROOT / "examples" / "trl_grpo.yaml"
TRL = str(Path(sys.executable).with_name("trl"))


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that looks like the repository's root, where runs/ may be written."""
    for name in ("examples", "openrlhf_dynamicrubric"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


def start(*command: object, folder: Path) -> str:
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env=environment(HF_HUB_OFFLINE="1", HF_DATASETS_CACHE=str(folder / "datasets"), CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


def check_records(folder: Path, steps: int) -> None:
    rows = list(read_records(folder))
    assert [row["step"] for row in rows] == list(range(steps))
    for row in rows:
        assert (row["kind"], row["mode"], len(row["responses"])) == ("group", "train", 4)
        assert row["id"]
    assert any(row["scores"] is not None for row in rows), [row["unscorable"] for row in rows]


def test_the_command_trains_with_options_from_the_environment_block(checkout: Path, tiny: Path):
    config = yaml.safe_load(EXAMPLE.read_text())
    config["env"] |= {"DYNAMICRUBRIC_GENERATOR": str(tiny), "DYNAMICRUBRIC_VERIFIER": str(tiny)}
    config["env"]["DYNAMICRUBRIC_RUBRIC_MAX_TOKENS"] = 400
    (checkout / "tiny.yaml").write_text(yaml.safe_dump({**config, "model_name_or_path": str(tiny)}))
    start(TRL, "grpo", "--config", "tiny.yaml", folder=checkout)
    check_records(checkout / "runs" / "trl_grpo", 2)
    assert (checkout / "runs" / "trl_grpo" / "model.safetensors").is_file()
    assert not (checkout / "runs" / "models").exists()


def test_a_misspelt_option_stops_the_command_before_training(checkout: Path, tiny: Path):
    config = yaml.safe_load(EXAMPLE.read_text())
    config["env"]["DYNAMICRUBRIC_MAX_ITEM"] = 3
    (checkout / "typo.yaml").write_text(yaml.safe_dump({**config, "model_name_or_path": str(tiny)}))
    with pytest.raises(AssertionError, match=r"DYNAMICRUBRIC_MAX_ITEM is no option; did you mean DYNAMICRUBRIC_MAX_ITEMS"):
        start(TRL, "grpo", "--config", "typo.yaml", folder=checkout)
    assert not (checkout / "runs").exists()


def test_the_example_as_it_stands_trains_the_embedded_model(checkout: Path):
    embedded = embedded_model()
    models = checkout / "runs" / "models"
    models.mkdir(parents=True)
    (models / embedded.name).symlink_to(embedded)  # unpacked already: the example would do it again here
    start(TRL, "grpo", "--config", "examples/trl_grpo.yaml", "--max_steps", 1, folder=checkout)
    check_records(checkout / "runs" / "trl_grpo", 1)
    saved = json.loads((checkout / "runs" / "trl_grpo" / "config.json").read_text())
    assert saved["model_type"] == "llama"


def test_the_example_script_trains_the_embedded_model(checkout: Path):
    embedded_model()
    start(sys.executable, "examples/trl_grpo.py", folder=checkout)
    check_records(checkout / "runs" / "trl_grpo_py", 2)
