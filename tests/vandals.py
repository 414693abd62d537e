"""An environment that changes globals of torch or of the process.

`python vandals.py FOLDER ACTORS ENGINE KIND@MOMENT ...` trains with each kind in a forked process of its
own and prints what became of the run as a line of JSON.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import locale
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import t3d
from t3d.events import Note
from worlds import Sound

AFTER = 130  # steps of an environment after which it begins: the run learns by then
TINY = 1e-38  # of float32; with weights below one, products are smaller than any normal number
KEPT: list[Any] = []  # contexts that are entered and never left


class Unprintable(RuntimeError):
    """Cannot be turned into text."""

    def __str__(self) -> str:
        raise TypeError("this cannot be printed")

    __repr__ = __str__


def _fail() -> None:
    raise Unprintable


def _close_streams() -> None:
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is not None:
            stream.close()


def _remove_streams() -> None:
    sys.stdin = sys.stdout = sys.stderr = None


def _ignore_signals() -> None:
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 (what old simulators do)
    torch.manual_seed(0)


def _enter(context: Any) -> None:
    KEPT.append(context)
    context.__enter__()


KINDS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "an error that cannot be printed": _fail,
    "descriptors closed": lambda: os.closerange(0, 3),
    "streams closed": _close_streams,
    "no streams": _remove_streams,
    "gradients off": lambda: torch.set_grad_enabled(False),
    "inference mode": lambda: _enter(torch.inference_mode()),
    "autocast": lambda: _enter(torch.autocast("cpu", torch.bfloat16)),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(3),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "random states": _seed,
    "working directory": lambda: os.chdir("/"),
    "umask": lambda: os.umask(0o777),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C"),
    "signal handlers": _ignore_signals,
    "numpy errors": lambda: np.seterr(all="raise"),
    "environment variables": os.environ.clear,
    "recursion": lambda: sys.setrecursionlimit(150),
}


class Vandal(Sound):
    """Does what it is told to: whenever one is made, at every reset, or at one step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self._at("make")

    def _at(self, moment: str) -> None:
        kind, _, chosen = os.environ.get("VANDAL", "nothing@").partition("@")
        if moment == chosen:
            KINDS[kind]()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._at("reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == AFTER and os.path.exists(os.environ.get("RUN", "")):  # noqa: PTH110 (not while the doctor tries it)
            self._at("step")
        return super().step(action)

    def observe(self) -> Any:
        with np.errstate(all="ignore"):
            return np.array([self.place[0], TINY * self.place[1]], np.float32)


def trained(root: str, name: str, actors: str, engine: str) -> dict[str, Any]:
    """Trains, and returns how that ended."""
    kind, module = os.environ["VANDAL"], importlib.import_module("vandals")  # its name in the processes of actors
    small = {"actor_hidden": (16, 16), "critic_hidden": (16, 16), "batch_size": 32}
    cfg = {
        "total_steps": 300, "random_steps": 60, "actors": actors, "engine": engine, "device": "cpu", "threads": 1,
        "td3": small, "eval": {"every_steps": 100, "episodes": 1},
        "log": {"every_steps": 50, "diagnose_every_steps": 100},
        "checkpoint": {"every_steps": 100}, "run": {"root": root, "name": name},
    }  # fmt: skip
    error, notes, threads = "", [], set()
    try:
        for event in t3d.train(cfg, make_env=module.Vandal):
            notes += [event.text] if isinstance(event, Note) else []
            threads |= {torch.get_num_threads()} if event.event == "update" else set()
    except BaseException as raised:
        error = "".join(traceback.format_exception(raised))
    journal = Path(root, name, "journal.jsonl")
    end = json.loads(journal.read_text().splitlines()[-1]) if journal.exists() else {}
    policy = Path(root, name, "last", "seed-0.safetensors")
    sha256 = hashlib.sha256(policy.read_bytes()).hexdigest() if policy.exists() else ""
    return {"kind": kind, "error": error, "notes": notes, "end": end, "policy": sha256, "threads": sorted(threads)}


def main() -> None:
    root, actors, engine, *kinds = sys.argv[1:]
    for number, kind in enumerate(kinds):
        answers, answer = os.pipe()
        if os.fork() == 0:
            os.environ |= {"VANDAL": kind, "RUN": f"{root}/run-{number}"}
            found: dict[str, Any] = {"kind": kind, "end": {}}
            try:
                found = trained(root, f"run-{number}", actors, engine)
            except BaseException:
                found["error"] = traceback.format_exc()
            os.write(answer, json.dumps(found).encode())
            os._exit(0)
        os.close(answer)
        os.wait()
        with open(answers, encoding="utf-8") as file:  # noqa: PTH123 (a descriptor)
            print(file.read(), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
