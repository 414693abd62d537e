"""Runs and what they leave: trained, read, compared."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import t3d
from t3d.config import Config, merge
from t3d.events import End, Event, Start, from_line
from t3d.store.checkpoint import newest
from t3d.store.contents import split

CHANGING = {
    "time",
    "seconds",
    "steps_per_second",
    "acting_share",
    "folder",
    "pid",
    "environment",
    "files",
}  # time, speed, and where it happened


def run(cfg: Config, root: Path, **keywords: Any) -> list[Event]:
    return list(t3d.train(merge(cfg, {"run": {"root": str(root)}}), **keywords))


def folder_of(events: list[Event]) -> Path:
    start = events[0]
    assert isinstance(start, Start)
    return Path(start.folder)


def end_of(events: list[Event]) -> End:
    end = events[-1]
    assert isinstance(end, End)
    return end


def weights(events: list[Event], kind: str = "last", seed: int = 0) -> np.ndarray[Any, Any]:
    return load_file(folder_of(events) / kind / f"seed-{seed}.safetensors")["actor"]


def events_of(folder: Path, file: str = "events.jsonl") -> list[Event]:
    return [known_event(line) for line in (folder / file).read_text().splitlines()]


def known_event(line: str) -> Event:
    event = from_line(line)
    assert event is not None, line
    return event


def everything(folder: Path) -> dict[str, Any]:
    """All that a finished run has come to: every array, every plain value, every row of the replay, the logs."""
    checkpoint, notes = newest(folder / "checkpoints")
    assert checkpoint is not None and not notes
    state = checkpoint.state()
    rows: dict[str, Any] = {}
    for segment in checkpoint.segments:
        arrays = load_file(checkpoint.path.parent / "replay" / segment.file.name)
        rows |= {f"{name} of {segment.member} from {segment.first}": array for name, array in arrays.items()}
    assert {segment.member for segment in checkpoint.segments} == set(state["members"])
    del state["logs"], state["progress"]["seconds"], state["config"]["run"], state["config"]["env"]["id"]
    state.pop("environment", None)  # and the id: classes of other names may play the same
    plain, arrays = split(state)
    return {"plain": plain, **arrays, **rows, "events": told(folder), "metrics": tabled(folder)}


def told(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line.get("kind") != "slow-environment"]  # an alarm that depends on time,
    lines = [line for line in lines if " is made again " not in line.get("text", "")]  # and a note that does
    for line in lines:
        line.get("config", {}).pop("run", None)
        line.get("config", {"env": {}})["env"].pop("id", None)
    return [{key: value for key, value in line.items() if key not in CHANGING} for line in lines]


def tabled(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key not in CHANGING} for row in rows]


def assert_equal(straight: Path, resumed: Path, but: tuple[str, ...] = ()) -> None:
    first, second = everything(straight), everything(resumed)
    for one in (first, second):
        for key in but:
            one["plain"].pop(key, None)
            one["events"][0].pop(key, None)
    assert first.keys() == second.keys()
    assert len(first) >= 18 and first["events"][-1]["reason"] == "finished", "there was something to compare"
    for name, value in first.items():
        if isinstance(value, np.ndarray):
            assert value.tobytes() == second[name].tobytes(), name
        else:
            assert value == second[name], name


def plotted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str | None, list[float]]]:
    """Fills with the label and the values of each line that is plotted from now on."""
    drawn: list[tuple[str | None, list[float]]] = []
    axes = pytest.importorskip("matplotlib.axes").Axes
    plot = axes.plot

    def noted(self: Any, *arguments: Any, **keywords: Any) -> Any:
        drawn.append((keywords.get("label"), list(arguments[1])))
        return plot(self, *arguments, **keywords)

    monkeypatch.setattr(axes, "plot", noted)
    return drawn
