"""One rank of several: calls the reward with its own rows of each case and writes down what it saw.

Usage: rank_reward.py CASES.json OUT_FOLDER [stop]; with `stop` the first error ends the process.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from openrlhf_dynamicrubric.errors import DynamicRubricError
from openrlhf_dynamicrubric.trl import DynamicRubricReward
from tests.scripted import ScriptedModel
from tests.trl.support import coin_model, down


def judges_of(case: dict[str, Any]) -> ScriptedModel:
    """The judge that everybody can repeat; down for "broken", and with a fault of its own for "explode"."""
    model = coin_model()
    write = model.write

    def scripted(prompt: Any, seed: int) -> Any:
        if "explode" in str(prompt):
            raise ZeroDivisionError("a fault of the judge")
        return down() if "broken" in str(prompt) else write(prompt, seed)

    model.write = scripted
    return model


def run_case(case: dict[str, Any], rows: list[list[Any]], *, stop: bool = False) -> dict[str, Any]:
    """What one process sees of a case whose rows are [prompt, completion] pairs."""
    model = judges_of(case)
    reward = DynamicRubricReward(model, model, records=case.get("records"), **case.get("options", {}))
    seen: dict[str, Any] = {"metrics": {}, "extra": {}, "error": None, "scores": None}
    try:
        for _ in range(case.get("times", 1)):
            seen["scores"] = reward(
                [prompt for prompt, _ in rows],
                [completion for _, completion in rows],
                log_metric=seen["metrics"].__setitem__,
                log_extra=seen["extra"].__setitem__,
            )
    except DynamicRubricError as error:
        if stop:
            raise
        seen["error"] = f"{type(error).__name__}: {error}"
    return {**seen, "written": len(model.written), "asked": model.asked}


def main() -> None:
    from accelerate import PartialState

    state = PartialState(cpu=True)
    cases = json.loads(Path(sys.argv[1]).read_text())
    stop = "stop" in sys.argv[3:]
    seen = [run_case(case, case["rows"][state.process_index], stop=stop) for case in cases]
    (Path(sys.argv[2]) / f"rank{state.process_index}.json").write_text(json.dumps(seen))
    state.wait_for_everyone()
    state.destroy_process_group()
    sys.stderr.flush()
    os._exit(0)  # all is written; torch's threads now and then abort an interpreter that ends by itself


if __name__ == "__main__":
    main()
