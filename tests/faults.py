"""Damage and hostile files, and the processes that meet them: `python faults.py saver | prober`."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pickle
import resource
import select
import shutil
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import helpers
import t3d
from t3d.config import Config
from t3d.data.replay import Replay
from t3d.errors import UserError
from t3d.files import CORRUPT_ERRORS, Refused, sealed
from t3d.policy import files as policies
from t3d.store import checkpoint as checkpoints
from t3d.store import contents
from t3d.store.checkpoint import Checkpoint, newest, open_checkpoint
from t3d.types import Rollout

SEGMENT_ROWS = 50  # so that checkpoints of a small run share segments
ROWS_A_SAVE, CAPACITY, SAVED_SEGMENT_ROWS = 10, 64, 25  # of the saver: its ring wraps, its segments are shared
PATIENCE = 15  # seconds without an answer that are called a hang
MEMORY = 2**33  # bytes of address space of a prober, so that a bomb does not take the machine along

CAN_MOUNT = (
    subprocess.run(
        ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"], capture_output=True, check=False
    ).returncode
    == 0
    if shutil.which("unshare")
    else False
)
in_a_mount = pytest.mark.skipif(not CAN_MOUNT, reason="unshare -rm with a mount is not permitted here")


def small(root: Path, name: str, **changes: Any) -> Config:
    return helpers.small_config(checkpoint={"every_steps": 60}, run={"root": str(root), "name": name}, **changes)


def both(quick: int, full: int) -> pytest.MarkDecorator:
    """The same trials in their short form and, marked slow, in their full number."""
    return pytest.mark.parametrize("trials", [quick, pytest.param(full, marks=pytest.mark.slow)])


def contents_of(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def stopped_run(root: Path, name: str) -> Path:
    """A run on Pendulum of 300 steps that was stopped at 240, with checkpoints of the steps 120, 180 and 240."""
    stop = threading.Event()
    for event in t3d.train(small(root, name), stop=stop):
        if event.event == "saved" and event.step == 240:
            stop.set()
    return root / name


class Kept:
    """The checkpoints of a folder while they are sound: which files each of them needs."""

    def __init__(self, run: Path) -> None:
        self.run, self.root = run, run / "checkpoints"
        paths = sorted((path for path in self.root.glob("0*-step-*")), reverse=True)
        self.needs = {path.name: _needed(open_checkpoint(path)) for path in paths}  # newest first

    @property
    def files(self) -> list[Path]:
        """All files of all checkpoints, once each, in a fixed order."""
        return sorted({self.root / file for needed in self.needs.values() for file in needed})

    def of_kind(self, kind: str) -> list[Path]:
        """manifest.json, state.json, state.safetensors or replay."""
        return [file for file in self.files if kind in (file.name, file.parent.name)]

    def without(self, damaged: Iterable[Path]) -> tuple[str, set[str]]:
        """The checkpoint to fall back to and the segments that it must do without."""
        lost = {str(file.relative_to(self.root)) for file in damaged}
        for name, needed in self.needs.items():
            if not needed & lost:
                return name, set()
        for name, needed in self.needs.items():
            if all(file.startswith("replay/") for file in needed & lost):
                return name, {Path(file).name for file in needed & lost}
        raise AssertionError("nothing is left to fall back to")

    def assert_noticed(self, damaged: Path) -> None:
        """Whoever reads a checkpoint that needs the file is told what is wrong with which file."""
        lost = str(damaged.relative_to(self.root))
        for name in [name for name, needed in self.needs.items() if lost in needed]:
            try:
                problems = open_checkpoint(self.root / name).problems()
            except CORRUPT_ERRORS:
                problems = {"manifest.json": Refused("unreadable")}
            assert damaged.name in problems, (damaged, problems)


def assert_in_order(run: Path) -> None:
    """A finished run's checkpoints are whole, and nothing else lies beside them."""
    sound = Kept(run)
    checkpoint, notes = newest(sound.root)
    assert checkpoint is not None and (checkpoint.step, notes) == (300, [])
    assert all(open_checkpoint(sound.root / name).problems() == {} for name in sound.needs)
    assert {file for file in sound.root.rglob("*") if file.is_file()} == set(sound.files)


def _needed(checkpoint: Checkpoint) -> set[str]:
    own = {f"{checkpoint.name}/{name}" for name in ("manifest.json", *(file.name for file in checkpoint.files))}
    return own | {f"replay/{segment.file.name}" for segment in checkpoint.segments}


def reseal(folder: Path, contents: dict[str, bytes], **changes: Any) -> None:
    """Puts other contents into a checkpoint as an attacker would: with sizes and hashes that are right."""
    manifest = json.loads((folder / "manifest.json").read_bytes())["manifest"]
    for name, content in contents.items():
        place = folder if name.startswith("state") else folder.parent / "replay"
        (place / name).write_bytes(content)
        entry = [name, len(content), hashlib.sha256(content).hexdigest()]
        manifest["files"] = [entry if file[0] == name else file for file in manifest["files"]]
        manifest["segments"] = [[*one[:3], entry if one[3][0] == name else one[3]] for one in manifest["segments"]]
    (folder / "manifest.json").write_bytes(sealed("manifest", manifest | changes))


def rewrite_policy(stem: Path, changes: dict[str, Any], tensors: dict[str, Any] | None = None) -> None:
    """Changes what a policy says of itself, or its numbers (None: left out), with hashes that are right."""
    numbers = {**safetensors.numpy.load(stem.with_suffix(".safetensors").read_bytes()), **(tensors or {})}
    numbers = {name: array for name, array in numbers.items() if array is not None}
    content, text = policies.contents({**t3d.load_policy(stem).about, **changes}, numbers)
    stem.with_suffix(".safetensors").write_bytes(content)
    stem.with_suffix(".json").write_bytes(text)


def tensors_file(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header and any claim about its length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.marker),)


def pickled(marker: Path) -> bytes:
    return pickle.dumps(Payload(marker))


def places(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of every value in nested JSON, inner ones included."""
    if path:
        yield path
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        yield from places(value, (*path, key))


def put_at(node: Any, path: tuple[str | int, ...], value: Any) -> None:
    *way, last = path
    for key in way:
        node = node[key]
    node[last] = value


class Served:
    """A process of this file's; one line asks it, lines come back."""

    def __init__(self, what: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        self._rest = b""

    def ask(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")

    def answer(self, patience: float = PATIENCE) -> str:
        """The next line; TimeoutError when none comes, EOFError when the process is gone."""
        assert self.process.stdout is not None
        until = time.monotonic() + patience
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self.process.stdout], [], [], max(0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            got = os.read(self.process.stdout.fileno(), 65536)
            if not got:
                raise EOFError
            self._rest += got
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


class Prober:
    """Meets files in a process of its own, which is restarted when it hangs or dies."""

    def __init__(self) -> None:
        self._served: Served | None = None

    def __call__(self, action: str, target: Path, outside: Path | None = None) -> dict[str, Any]:
        """What came of an action on a run folder or a file, and which files under `outside` were opened."""
        if self._served is None:
            self._served = Served("prober")
            assert self._served.answer(120) == "ready"
        self._served.ask(json.dumps([action, str(target), str(outside or "")]))
        try:
            return dict(json.loads(self._served.answer()))
        except TimeoutError:
            self.close()
            return {"outcome": "hang", "text": f"no answer in {PATIENCE} s", "seconds": PATIENCE, "opened": []}
        except EOFError:
            code = self._served.process.wait()
            self.close()
            return {"outcome": f"death {code}", "text": "", "seconds": 0.0, "opened": []}

    def close(self) -> None:
        if self._served is not None:
            self._served.close()
        self._served = None


def say(text: str) -> None:
    os.write(1, text.encode() + b"\n")


def serve_saver() -> None:
    """For each folder named on stdin, a child that saves checkpoints until it is killed."""
    contents.SEGMENT_ROWS = SAVED_SEGMENT_ROWS
    say("ready")
    for line in sys.stdin:
        go, gone_on = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.read(go, 1)  # whose number is said first must be the child's
                save_for_ever(Path(line.strip()))
            finally:
                os._exit(1)
        say(f"pid {child}")
        os.write(gone_on, b"!")
        os.close(go)
        os.close(gone_on)
        _, status = os.waitpid(child, 0)
        say(f"gone {os.waitstatus_to_exitcode(status)}")


def save_for_ever(root: Path) -> None:
    """The number of each checkpoint is in its state, in its arrays and in the rows that are new with it."""
    replay, before, number = saver_replay(), None, 0
    while True:
        number += 1
        replay.add(saver_rows(number))
        state = {
            "members": ["seed-0"],
            "number": number,
            "added": list(replay.added),
            "array": np.full(20_000, number, "f4"),
        }
        before, _ = checkpoints.save(root, number, state, replay, before)
        say(str(number))


def saver_replay() -> Replay:
    return Replay(helpers.make_spec(3, 1), CAPACITY, members=1)


def saver_rows(number: int) -> Rollout:
    column = np.full(ROWS_A_SAVE, number, np.float32)
    wide = np.repeat(column[:, None], 3, axis=1)
    return helpers.rollout_of(0, wide, column[:, None], column, wide, column)


def saved_number(checkpoint: Checkpoint) -> int:
    """The number that a checkpoint of save_for_ever holds, after seeing that all of it agrees."""
    state = checkpoint.state()
    number = state["number"]
    assert checkpoint.step == number and state["added"] == [number * ROWS_A_SAVE]
    assert state["array"].shape == (20_000,) and (state["array"] == number).all()
    replay = saver_replay()
    replay.rows.fill_(-1)
    replay.set_added(state["added"])
    checkpoint.fill(replay, 0, "seed-0")
    first, stop = replay.kept(0)
    expected = np.arange(first, stop)[:, None] // ROWS_A_SAVE + 1
    assert (replay.contents(0, first, stop)["rows"] == expected).all()
    return int(number)


def serve_prober() -> None:
    """Does what each line of stdin asks, and answers with what came of it."""
    from t3d.app.cli import main  # noqa: PLC0415

    opened: list[str] = []
    outside = ""

    def listen(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "pickle.find_class":
            opened.append(f"pickle of {arguments}")
        if event == "open" and outside and isinstance(arguments[0], str | bytes | os.PathLike):
            path = Path(os.fsdecode(arguments[0]))
            follows = not arguments[2] & os.O_NOFOLLOW
            real = os.path.realpath(path) if follows else f"{os.path.realpath(path.parent)}/{path.name}"
            if os.path.commonpath([real, outside]) == outside:
                opened.append(real)

    actions: dict[str, Callable[[Path], Any]] = {
        "resume": lambda path: [event.event for event in t3d.resume(path)][-1],
        "policy": lambda path: t3d.load_policy(path)([0.0, 0.0, 0.0]).tolist(),
        "show": lambda path: main(["runs", "show", str(path)]),
        "list": lambda path: main(["runs", "--root", str(path.parent)]),
        "eval": lambda path: main(["eval", str(path), "--episodes", "1"]),
        "plot": lambda path: main(["plot", str(path), "--out", str(path / "plot.svg")]),
    }
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.addaudithook(listen)
    say("ready")
    for line in sys.stdin:
        action, target, outside = json.loads(line)
        opened.clear()
        begun = time.process_time()
        try:
            with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
                outcome, text = "done", str(actions[action](Path(target)))
        except UserError as error:
            outcome, text = "UserError", str(error)
        except BaseException as error:
            outcome, text = type(error).__name__, str(error)
        seconds, found, outside = time.process_time() - begun, list(opened), ""
        say(json.dumps({"outcome": outcome, "text": text[:2000], "seconds": seconds, "opened": found}))


if __name__ == "__main__":
    import torch

    torch.set_num_threads(1)
    {"saver": serve_saver, "prober": serve_prober}[sys.argv[1]]()
