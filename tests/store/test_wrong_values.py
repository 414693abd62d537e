"""R12: values that T3D would not have written, in checkpoints with the right hashes and in the logs."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import faults
from faults import Prober, both, reseal
from hostile import Hostile
from t3d.store.checkpoint import open_checkpoint
from t3d.store.contents import split

pytestmark = pytest.mark.usefixtures("shared_segments")

VALUES: list[Any] = ["x", [], {}, None, 10**30, -(10**30), -1, 0.5, float("inf"), float("nan"), True, ["x"], {"x": 1}]
STATE_PLACES = list(
    faults.places(
        {
            "collector": {
                "seed-0": {
                    "env-0": {
                        "bad_values": 0,
                        "episode": 0,
                        "length": 0,
                        "noise": 0,
                        "noise_stream": {"bit_generator": 0, "has_uint32": 0, "state": {"inc": 0, "state": 0}},
                        "trace": 0,
                        "warm_up_stream": {"bit_generator": 0, "state": 0, "uinteger": 0},
                    },
                    "taken": 0,
                }
            },
            "config": {"td3": {"gamma": 0, "actor_hidden": [0]}, "env": {"id": 0}, "seeds": [0], "total_steps": 0},
            "learner": {"updates": 0},
            "logs": {"events.jsonl": 0, "metrics.csv": 0},
            "memory": {"added": [0], "normaliser": 0, "sampler": 0},
            "progress": {"evaluated": 0, "log_due": 0, "seconds": 0, "step": 0, "best": 0},
            "members": [0],
            "spec": {"observed": 0, "observation": [0], "action_shape": 0, "bounds": [0], "max_action_change": 0},
            "best": 0,
            "stopped": 0,
            "versions": {"t3d": 0},
        }
    )
)


@both(20, 10_000)
@pytest.mark.timeout(1800)
def test_wrong_types_in_a_sealed_state_are_refused(stopped: Path, tmp_path: Path, prober: Prober, trials: int) -> None:
    """All hashes are right, and one value is not what T3D would have written."""
    changes = [(place, value) for place in STATE_PLACES for value in VALUES]
    wrong = []
    for trial, (place, value) in enumerate(random.Random(12).sample(changes, min(trials, len(changes)))):
        run = shutil.copytree(stopped, tmp_path / str(trial))
        folder = run / "checkpoints" / "000004-step-240"
        state = json.loads((folder / "state.json").read_bytes())
        faults.put_at(state, place, value)
        reseal(folder, {"state.json": json.dumps(state).encode()})
        answer = prober("resume", run)
        if answer["outcome"] not in ("done", "UserError"):
            wrong.append(f"{'/'.join(map(str, place))} = {value!r}: {answer['outcome']}: {answer['text'][:100]}")
        shutil.rmtree(run)
    assert wrong == [], "\n".join(wrong)


ARRAYS = {
    "gone": None,
    "no numbers": np.zeros(0, np.float32),
    "one number": np.zeros((), np.float32),
    "many axes": np.zeros((1, 1, 1, 1), np.float32),
    "whole numbers": np.zeros((1, 353), np.int64),
    "flags": np.zeros(1, np.bool_),
    "not finite": np.full((40, 1), np.nan, np.float32),
    "long": np.zeros((5000, 1), np.float32),
}


@both(14, 10_000)
@pytest.mark.timeout(600)
def test_wrong_arrays_in_a_sealed_state_are_refused(stopped: Path, tmp_path: Path, prober: Prober, trials: int) -> None:
    arrays = split(open_checkpoint(stopped / "checkpoints" / "000004-step-240").state())[1]
    changes = [(name, kind) for name in sorted(arrays) for kind in ARRAYS]
    wrong = []
    for trial, (name, kind) in enumerate(random.Random(14).sample(changes, min(trials, len(changes)))):
        run = shutil.copytree(stopped, tmp_path / str(trial))
        changed = {key: value for key, value in arrays.items() if key != name}
        if (array := ARRAYS[kind]) is not None:
            changed[name] = array
        reseal(run / "checkpoints" / "000004-step-240", {"state.safetensors": safetensors.numpy.save(changed)})
        answer = prober("resume", run)
        if answer["outcome"] not in ("done", "UserError"):
            wrong.append(f"{name} {kind}: {answer['outcome']}: {answer['text'][:100]}")
        shutil.rmtree(run)
    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("line", ["5", "[]", '"x"', "null", '{"event": []}', '{"event": "eval"}', "\x00", "\ud800"])
def test_lines_that_are_no_events_are_a_sentence(hostile: Hostile, line: str) -> None:
    with (hostile.run / "events.jsonl").open("ab") as file:
        file.write(line.encode("utf-8", "surrogatepass") + b"\n")
    hostile.meet("show", "eval")


@both(6, 25)
def test_evaluations_with_wrong_values_are_a_sentence(
    stopped: Path, tmp_path: Path, prober: Prober, trials: int
) -> None:
    lines = (stopped / "events.jsonl").read_text().splitlines()
    evaluation = next(json.loads(line) for line in lines if '"event": "eval"' in line)
    fields = ["seed", "mean_return", "step", "returns", "updates"]
    values: list[Any] = ["x", [], {}, None, 10**400]
    wrong = []
    for trial, (field, value) in enumerate(
        random.Random(15).sample([(field, value) for field in fields for value in values], trials)
    ):
        run = shutil.copytree(stopped, tmp_path / str(trial))
        with (run / "events.jsonl").open("a") as file:
            file.write(json.dumps({**evaluation, field: value}) + "\n")
        for action in ("show", "eval", "plot"):
            answer = prober(action, run)
            if answer["outcome"] not in ("done", "UserError"):
                wrong.append(f"{action}, {field} = {value!r:.20}: {answer['outcome']}: {answer['text'][:100]}")
        shutil.rmtree(run)
    assert wrong == [], "\n".join(wrong)
