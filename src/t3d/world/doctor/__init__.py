"""The environment doctor: plays an environment for a moment and reports what is wrong with it.

Problems that training cannot survive are raised as a UserError; those it can survive are returned as warnings.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import gymnasium as gym
from gymnasium.vector import VectorEnv

from t3d.config import EnvConfig
from t3d.errors import OwnSignal, UserError
from t3d.world.doctor.checks import CHECKS, images, play
from t3d.world.guard import EnvFactory, EnvGuard, close_quietly
from t3d.world.pixels import open_env
from t3d.world.schedules import try_schedules
from t3d.world.spec import name_of, spec_of

CALL_SECONDS = 60.0  # for one call; chosen: compiling or loading a large simulator takes less
STDERR = 2
Begin = Callable[[str], object]  # marks the start of a call into the user's code


def examine(
    make_env: EnvFactory, cfg: EnvConfig | None = None, call_seconds: float = CALL_SECONDS, begin: Begin | None = None
) -> list[str]:
    """Returns warnings about the environment; raises UserError if training cannot work with it.

    A call that takes longer than call_seconds raises a UserError too, unless somebody else watches, who gets `begin`.
    """
    cfg = replace(cfg or EnvConfig(), action_repeat=1)  # every step is looked at
    with nullcontext(begin) if begin else watching(call_seconds) as begin_call:
        begin_call("making the environment")
        env = open_env(make_env, cfg)
        if not isinstance(env, gym.Env | VectorEnv):
            raise UserError(f"the environment factory returned {type(env).__name__}, not a gymnasium.Env or VectorEnv")
        try:
            warnings = _examine(env, cfg, begin_call)
        finally:
            begin_call("closing the environment")
            close_quietly(env, name_of(env))
        return warnings + try_schedules(make_env, cfg, lambda: begin_call("the arguments of env.schedule"))


def _examine(env: Any, cfg: EnvConfig, begin: Begin) -> list[str]:
    def call_begins() -> None:
        begin(f"{f'step {guard.step}' if guard.step else 'reset'} of episode {guard.episode}")

    guard = EnvGuard(spec_of(env, cfg), name_of(env), 0, cfg, call_begins)
    if isinstance(env, VectorEnv):
        only = f"{guard.where} is a VectorEnv; its environments are checked only while they are stepped"
        return [only, *(f"{guard.where}: {text}" for text in images(guard.spec))]
    trial = play(env, guard)
    return [f"{guard.where}: {text}" for check in CHECKS for text in check(trial)]


class TooLong(OwnSignal):
    """Raised inside a call that takes too long."""


class Watch:
    """A timeout for each call into the user's code: one that does not return is interrupted, or warned of."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.main = threading.current_thread()
        # Only Python code in the main thread can be interrupted, by a signal that nobody else uses.
        self.interrupts = (
            self.main is threading.main_thread()
            and hasattr(signal, "SIGALRM")  # not on Windows
            and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
            and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        )
        self._now = ("", time.monotonic())  # one value, because another thread reads it

    def begin(self, call: str) -> None:
        self._now = (call, time.monotonic())

    def follow(self, over: threading.Event) -> None:
        """Interrupts overdue calls, again and again in case they catch it; warns once of each that goes on."""
        overdue, looks = 0.0, 0
        while not over.wait(self.seconds / 8):
            since = self._now[1]
            if time.monotonic() - since <= self.seconds:
                continue
            overdue, looks = since, looks + 1 if since == overdue else 0
            if self.interrupts and self.main.ident is not None:
                signal.pthread_kill(self.main.ident, signal.SIGALRM)
            if looks == self.interrupts:  # code in C is not interrupted before it returns
                print(f"warning: {self.complaint()}", file=sys.stderr, flush=True)  # noqa: T201

    def interrupt(self, *_: object) -> None:
        """Handles the signal; one that comes late, after its call has returned, is ignored."""
        if time.monotonic() - self._now[1] > self.seconds:
            raise TooLong(self.complaint())

    def complaint(self) -> str:
        limit = f"{self.seconds:g}"
        remedy = f"find out why, or let training wait longer: env.hang_seconds above {limit}"
        return f"{self._now[0]} has taken over {limit} s; {remedy}"


@contextmanager
def watching(seconds: float) -> Iterator[Begin]:
    """Watches the calls made inside it; if the process crashes meanwhile, it prints a Python traceback."""
    watch, over = Watch(seconds), threading.Event()
    thread = threading.Thread(target=watch.follow, args=(over,), name="t3d-watch", daemon=True)
    with ExitStack() as undo:
        if not faulthandler.is_enabled():
            faulthandler.enable(STDERR)
            undo.callback(faulthandler.disable)
        if watch.interrupts:
            undo.callback(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, watch.interrupt))
        thread.start()
        undo.callback(thread.join)
        undo.callback(over.set)
        undo.callback(watch.begin, "")
        try:
            yield watch.begin
        except TooLong as late:
            *_, where, _ = traceback.extract_tb(late.__traceback__)  # the last frame is the signal handler
            raise UserError(f"{late} (it was in {where.filename}, line {where.lineno})") from late
