"""R12: hostile files under every name that is read: nothing is executed, nothing outside touched."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import faults
import t3d
from faults import reseal, tensors_file
from hostile import EVERY_NAME, READERS, TEXTS, Hostile, readers
from t3d.store.checkpoint import newest

SOURCE = Path(t3d.__file__).parent


def test_the_prober_sees_what_it_must_see(hostile: Hostile) -> None:
    """A sound run is met by every command without a complaint, and reading outside is noticed."""
    assert [answer["outcome"] for answer in hostile.meet()] == ["done"] * len(READERS)
    shutil.copytree(hostile.run / "best", hostile.outside / "best")
    answer = hostile.prober("policy", hostile.outside / "best" / "seed-0", hostile.outside)
    assert sorted(Path(name).name for name in answer["opened"]) == ["seed-0.json", "seed-0.safetensors"]


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_pickle_under_an_accepted_name_is_not_executed(hostile: Hostile, name: str) -> None:
    (hostile.run / name).write_bytes(faults.pickled(hostile.marker))
    hostile.meet(*READERS)


@pytest.mark.parametrize("name", ["state.json", "state.safetensors", "segment"])
def test_a_pickle_with_the_right_hash_is_refused(hostile: Hostile, name: str) -> None:
    name = hostile.segment if name == "segment" else name
    reseal(hostile.newest, {name: faults.pickled(hostile.marker)})
    hostile.refuse("resume")


ROW = {"dtype": "F32", "shape": [40, 9], "data_offsets": [0, 1440]}
TENSORS = {
    "overlapping": tensors_file({"rows": ROW, "other": {**ROW, "data_offsets": [720, 2160]}}, bytes(2160)),
    "same place twice": tensors_file({"rows": ROW, "other": ROW}, bytes(1440)),
    "offset 2^63": tensors_file({"rows": {**ROW, "data_offsets": [2**63, 2**63 + 1440]}}, bytes(1440)),
    "offset 2^64": tensors_file({"rows": {**ROW, "data_offsets": [0, 2**64]}}, bytes(1440)),
    "negative offset": tensors_file({"rows": {**ROW, "data_offsets": [-1440, 0]}}, bytes(1440)),
    "past the end": tensors_file({"rows": {**ROW, "data_offsets": [0, 2880], "shape": [80, 9]}}, bytes(1440)),
    "shape 2^62": tensors_file({"rows": {**ROW, "shape": [2**62, 9]}}, bytes(1440)),
    "shape overflows": tensors_file({"rows": {**ROW, "shape": [2**32, 2**32, 0]}}, bytes(1440)),
    "header of 2^60": tensors_file({"rows": ROW}, bytes(1440), length=2**60),
    "header of 2^64 - 1": tensors_file({"rows": ROW}, bytes(1440), length=2**64 - 1),
    "header of 200 MB": tensors_file({"rows": ROW}, bytes(1440), length=200_000_000),
    "no header": b"\x00" * 8,
    "nothing": b"",
    "deep header": tensors_file(b"[" * 100_000),
    "other type": tensors_file({"rows": {**ROW, "dtype": "F64", "shape": [20, 9]}}, bytes(1440)),
    "whole numbers": tensors_file({"rows": {**ROW, "dtype": "I32"}}, bytes(1440)),
    "bfloat": tensors_file({"rows": {**ROW, "dtype": "BF16", "shape": [80, 9]}}, bytes(1440)),
    "eight bits": tensors_file({"rows": {**ROW, "dtype": "F8_E4M3", "shape": [160, 9]}}, bytes(1440)),
    "unknown type": tensors_file({"rows": {**ROW, "dtype": "PICKLE"}}, bytes(1440)),
    "other name": tensors_file({"cols": ROW}, bytes(1440)),
    "other width": tensors_file({"rows": {**ROW, "shape": [120, 3]}}, bytes(1440)),
    "three axes": tensors_file({"rows": {**ROW, "shape": [40, 3, 3]}}, bytes(1440)),
    "no axes": tensors_file({"rows": {**ROW, "shape": [], "data_offsets": [0, 4]}}, bytes(4)),
    "too few rows": tensors_file({"rows": {**ROW, "shape": [10, 9], "data_offsets": [0, 360]}}, bytes(360)),
    "too many rows": tensors_file({"rows": {**ROW, "shape": [400, 9], "data_offsets": [0, 14400]}}, bytes(14400)),
    "no rows": tensors_file({"rows": {**ROW, "shape": [0, 9], "data_offsets": [0, 0]}}),
    "not finite": tensors_file({"rows": ROW}, np.full(360, np.nan, "f4").tobytes()),
}
WRONG_ROWS_ONLY = ("too few rows", "too many rows", "not finite")


@pytest.mark.parametrize("kind", TENSORS)
def test_hostile_numbers_in_the_replay_are_refused(hostile: Hostile, kind: str) -> None:
    reseal(hostile.newest, {hostile.segment: TENSORS[kind]})
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "UserError", answer
    assert kind == "not finite" or "diverged" not in answer["text"], "refused before it was learned from"


SOME = ("overlapping", "offset 2^63", "header of 2^60", "bfloat", "no axes")


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind in SOME else pytest.mark.slow)
        for kind in TENSORS
        if kind not in WRONG_ROWS_ONLY
    ],
)
def test_hostile_numbers_in_state_and_policy_are_refused(hostile: Hostile, kind: str) -> None:
    reseal(hostile.newest, {"state.safetensors": TENSORS[kind]})
    (hostile.run / "best" / "seed-0.safetensors").write_bytes(TENSORS[kind])
    hostile.refuse("policy", "resume")


@pytest.mark.parametrize(
    "name",
    [
        "../../../outside/precious",
        "..",
        "/etc/passwd",
        "state.json/../../../../outside/precious",
        "nul\0.json",
        "a/b",
        "a\\b",
        "",
        ".",
        "state.json\n",
        "x" * 10_000_000,
        "ſtate.json",
        None,
        7,
        ["state.json"],
    ],
    ids=lambda name: repr(name)[:30],
)
@pytest.mark.parametrize("where", ["files", "segments"])
def test_a_manifest_may_name_nothing_but_plain_files(hostile: Hostile, name: Any, where: str) -> None:
    absolute = str(hostile.outside / "precious") if name == "/etc/passwd" else name
    manifest = json.loads((hostile.newest / "manifest.json").read_bytes())["manifest"]
    entry = [absolute, 8, "0" * 64]
    value = [*manifest["files"], entry] if where == "files" else [*manifest["segments"], [0, 240, 248, entry]]
    reseal(hostile.newest, {}, **{where: value})
    checkpoint, notes = newest(hostile.newest.parent)
    assert checkpoint is not None and checkpoint.step == 180, "the one before it"
    assert len(notes) == 1 and "000004-step-240 is damaged: manifest.json" in notes[0] and len(notes[0]) < 400
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "done"


MANIFESTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "size 2^62": lambda m: {"files": [[name, 2**62, sha] for name, _, sha in m["files"]]},
    "negative size": lambda m: {"files": [[name, -1, sha] for name, _, sha in m["files"]]},
    "size in words": lambda m: {"files": [[name, "much", sha] for name, _, sha in m["files"]]},
    "no files": lambda m: {"files": []},
    "files twice": lambda m: {"files": m["files"] * 2},
    "files is a number": lambda m: {"files": 3},
    "files is a text": lambda m: {"files": "state.json"},
    "files is a dict": lambda m: {"files": {"state.json": 1}},
    "entries too long": lambda m: {"files": [[*file, 4] for file in m["files"]]},
    "no segments": lambda m: {"segments": []},
    "segments twice": lambda m: {"segments": m["segments"] * 2},
    "segments shifted": lambda m: {"segments": [[s, a + 10, b + 10, f] for s, a, b, f in m["segments"]]},
    "segments of 2^62": lambda m: {"segments": [[s, a, b + 2**62, f] for s, a, b, f in m["segments"]]},
    "segments before the beginning": lambda m: {"segments": [[s, a - 2**62, b, f] for s, a, b, f in m["segments"]]},
    "segments backwards": lambda m: {"segments": [[s, b, a, f] for s, a, b, f in m["segments"]]},
    "segments of another seed": lambda m: {"segments": [[f"{s}1", a, b, f] for s, a, b, f in m["segments"]]},
    "segments of 10^400": lambda m: {"segments": [[s, a, 10**400, f] for s, a, b, f in m["segments"]]},
    "step in words": lambda m: {"step": "many"},
    "step is a list": lambda m: {"step": []},
    "step is 10^400": lambda m: {"step": 10**400},
    "format is a text": lambda m: {"format": "1"},
    "format is null": lambda m: {"format": None},
    "format is negative": lambda m: {"format": -1},
}


@pytest.mark.parametrize("kind", MANIFESTS)
def test_a_sealed_manifest_that_lies_is_refused_or_passed_over(hostile: Hostile, kind: str) -> None:
    manifest = json.loads((hostile.newest / "manifest.json").read_bytes())["manifest"]
    reseal(hostile.newest, {}, **MANIFESTS[kind](manifest))
    hostile.meet("resume")


@pytest.mark.parametrize(
    "manifest", [b"", b"[]", b"null", b"7", b'"manifest"', b"{}", b'{"manifest":[],"sha256":""}', b'{"manifest":1e999}']
)
def test_what_is_no_manifest_is_passed_over(hostile: Hostile, manifest: bytes) -> None:
    (hostile.newest / "manifest.json").write_bytes(manifest)
    checkpoint, notes = newest(hostile.newest.parent)
    assert checkpoint is not None and checkpoint.step == 180 and "manifest.json" in notes[0]


DEEP = b"[" * 100_000


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(
    "deep", [pytest.param("brackets", marks=pytest.mark.slow), pytest.param("whole", marks=pytest.mark.slow), "in TOML"]
)
def test_deep_brackets_are_refused(hostile: Hostile, name: str, deep: str) -> None:
    closed = DEEP + b"]" * 100_000
    kinds = {"brackets": DEEP, "whole": closed + b"\n", "in TOML": b"seeds = " + closed + b"\n"}
    (hostile.run / name).write_bytes(kinds[deep])
    hostile.meet(*readers(name))


def test_deep_brackets_with_the_right_hash_are_refused(hostile: Hostile) -> None:
    for content in (DEEP, b'{"config":' * 100_000 + b"1" + b"}" * 100_000):
        reseal(hostile.newest, {"state.json": content})
        hostile.refuse("resume")


@pytest.mark.parametrize("name", EVERY_NAME)
def test_a_pipe_does_not_hang_anything(hostile: Hostile, name: str) -> None:
    (hostile.run / name).unlink()
    os.mkfifo(hostile.run / name)
    hostile.meet(*readers(name))


@pytest.mark.parametrize("name", [name for name in EVERY_NAME if name != "events.jsonl"])  # that one may be long
def test_a_huge_file_is_not_read_whole(hostile: Hostile, name: str) -> None:
    """A terabyte that takes no room on the disk, as a copied folder or an archive may hold."""
    os.truncate(hostile.run / name, 2**40)
    hostile.meet(*readers(name))


def test_nothing_in_the_source_can_execute_a_file() -> None:
    forbidden = re.compile(
        r"\b(c?pickle|dill|cloudpickle|joblib|marshal|shelve|jsonpickle)\b|(?<![\w.])(eval|exec|compile|__import__)\("
        r"|torch\.load\b|torch\.jit\.load\b|yaml\.(load|unsafe_load|full_load)\b|allow_pickle\s*=\s*True|np\.load\(|numpy\.load\("
    )
    files = sorted(SOURCE.rglob("*.py"))
    found = [
        f"{file.relative_to(SOURCE)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if forbidden.search(line)
    ]
    allowed = [
        line
        for line in found
        if "safetensors.numpy.load(" in line or (line.startswith("sb3.py:") and "weights_only=True)" in line)
    ]
    assert len(files) > 30 and [line for line in found if line not in allowed] == []
