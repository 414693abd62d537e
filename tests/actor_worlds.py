"""Environments for actor processes, which import no torch: they say where a transition comes from, and they fail."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import gymnasium as gym
import numpy as np

from t3d.seeds import derive


class Told(gym.Env[Any, Any]):
    """Every observation says which episode (by its seed, in two numbers that float32 holds) and which step it is."""

    spread = 7  # episodes end after 3 to 9 steps

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        self.buffer = np.zeros(3, np.float32)  # reused on purpose: T3D must copy

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self.seed, self.t = seed, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        over, even = self.t == 3 + self.seed % self.spread, self.seed % 2 == 0
        return self._observe(), float(self.seed % 1000 + self.t), over and even, over and not even, {}

    def _observe(self) -> Any:
        self.buffer[:] = (self.seed >> 16, self.seed & 0xFFFF, self.t)
        return self.buffer


class Lengthy(Told):
    """Of so few episodes in a million steps that no two have the same 31 bits of a seed."""

    spread = 300


class Slow(Told):
    """A step takes 10 ms, without work."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0.01)
        return super().step(action)


class SlowExam(Told):
    """A step takes 10 ms, but not in an actor."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(0 if in_actor() else 0.01)
        return super().step(action)


class Endless(Slow):
    """An episode takes longer than any test."""

    spread = 10**9


class BadBeginning(Told):
    """Its first observation in an actor holds a NaN."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(seed=seed)
        return (np.array([0, 0, np.nan], np.float32) if in_actor() else observation), info


def first_time() -> bool:
    """Whether no process has been here before; the file tells later when it was."""
    try:
        Path(os.environ["FAULT_FILE"]).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def fail() -> None:
    kind = os.environ["FAULT"]
    if kind.endswith("exception"):
        raise RuntimeError("the simulator has lost its mind")
    if kind.endswith("sleep"):
        time.sleep(60)
    if kind.startswith("SIG"):
        os.kill(os.getpid(), signal.Signals[kind])
    if kind == "exit":
        sys.exit(0)
    if kind == "hard exit":
        os._exit(3)
    if kind == "segfault":
        ctypes.string_at(0)


def in_actor() -> bool:
    """Whether this process collects; neither the run itself, nor its evaluation, nor its doctor does."""
    return in_role("Actor")


def in_role(name: str) -> bool:
    """Whether this process is a worker of this role."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if type(frame.f_locals.get("self")).__name__ == name:
            return True
        frame = frame.f_back
    return False


class Faulty(Told):
    """Fails once in an actor, in the way and the place that the environment variable FAULT says."""

    def __init__(self) -> None:
        super().__init__()
        if os.environ["FAULT"] == "slow start" and in_actor() and first_time():
            time.sleep(3)
        if os.environ["FAULT"] == "make exception" and in_actor() and first_time():
            fail()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        answer = super().reset(seed=seed)
        if os.environ["FAULT"].startswith("reset") and in_actor() and first_time():
            fail()
        return answer

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        in_step = not os.environ["FAULT"].startswith(("reset", "make", "slow"))
        if in_step and self.t == 2 and in_actor() and first_time():
            fail()
        return super().step(action)


class Lonely(Told):
    """Cannot bear to be the only environment of its process, if it is the first of seed 0."""

    count = 0

    def __init__(self) -> None:
        super().__init__()
        Lonely.count += 1

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        mine = {derive(0, "environment", 0, episode) for episode in range(200)}
        if Lonely.count == 1 and self.seed in mine and in_actor():
            raise RuntimeError("alone")
        return super().step(action)


class Mortal(Told):
    """No process gets beyond its thirtieth step."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Mortal.steps += in_actor()
        if Mortal.steps > 30:
            raise RuntimeError("old age")
        return super().step(action)


class Watched(Told):
    """Writes down what its process is made of."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        status = Path("/proc/self/status").read_text()
        threads = next(line.split()[1] for line in status.splitlines() if line.startswith("Threads"))
        Path(os.environ["SEEN_FILE"]).write_text(f"{threads} {'torch' in sys.modules}")
        print("environments may print")
        return super().step(action)


class Bad(Told):
    """Returns a NaN in the middle of its fifth episode."""

    episodes = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.episodes += 1
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        bad = self.episodes == 5 and self.t == 2 and in_actor()
        return (observation, float("nan") if bad else reward, *rest)


class FragilePendulum(gym.Wrapper[Any, Any, Any, Any]):
    """R10: Pendulum that crashes now and then, in two of three environments."""

    def __init__(self) -> None:
        super().__init__(gym.make("Pendulum-v1", disable_env_checker=True))
        self.fragile = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        known = {derive(s, "environment", env, ep) for s in range(3) for env in (0, 1) for ep in range(200)}
        self.fragile = in_actor() and seed in known
        self._crash(0.005)
        return self.env.reset(seed=seed)

    def step(self, action: Any) -> Any:
        self._crash(0.0005)
        return self.env.step(action)

    def _crash(self, chance: float) -> None:
        if self.fragile and int.from_bytes(os.urandom(4)) < chance * 2**32:
            os.kill(os.getpid(), signal.SIGKILL)


class Examined(Told):
    """Fails in evaluations: once, or whenever FAULT says always."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        examined = self.seed in {derive(0, "evaluation", episode) for episode in range(2)}
        if examined and in_role("Evaluator") and (os.environ["FAULT"] == "always" or first_time()):
            raise RuntimeError("examination nerves")
        return super().step(action)


class SlowReset(Told):
    """A reset takes 0.4 s."""

    spread, seconds = 100, 0.4

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        time.sleep(self.seconds if in_actor() else 0)
        return super().reset(seed=seed)


class VerySlowReset(SlowReset):
    """A reset takes 1.5 s."""

    seconds = 1.5


class LateBad(Told):
    """Returns a NaN after 300 sound steps."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, reward, *rest = super().step(action)
        self.steps += in_actor()
        return (observation, float("nan") if self.steps > 300 else reward, *rest)


def make_vector() -> Any:
    return gym.vector.SyncVectorEnv([Told] * 3, autoreset_mode=gym.vector.AutoresetMode.DISABLED)


class Family(Told):
    """Has a simulator of its own, which it ends in close(); hangs once."""

    def __init__(self) -> None:
        super().__init__()
        self.simulator = subprocess.Popen(["sleep", os.environ["SLEEP"]])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 2 and in_actor() and first_time():
            time.sleep(60)
        return super().step(action)

    def close(self) -> None:
        self.simulator.kill()
        self.simulator.wait()


class Fragile(Told):
    """Every process dies at its twentieth step of an evaluation, which has more."""

    steps = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        Fragile.steps += in_role("Evaluator")
        if Fragile.steps == 20:
            os.kill(os.getpid(), signal.SIGSEGV)
        return super().step(action)


class ReadsStdin(Endless):
    """Starts a program that reads its standard input for ever, whatever comes."""

    spread = 7

    def __init__(self) -> None:
        super().__init__()
        self.program = subprocess.Popen(["sh", "-c", "while sleep 0.002; do cat; done >/dev/null 2>&1"])

    def close(self) -> None:
        self.program.kill()
        self.program.wait()


class ListsDescriptors(Told):
    """Writes down which descriptors a program has that it starts in the way C code does."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        listing = subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True, check=True, text=True)
        if in_actor():
            Path(os.environ["SEEN_FILE"]).write_text(listing.stdout)
        return super().step(action)


class Chatty(Told):
    """Prints 100 kB a step: from Python, from C, and from a program that it starts once."""

    def __init__(self) -> None:
        super().__init__()
        subprocess.run(["head", "-c", "1000000", "/dev/zero"], check=False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        print("p" * 50_000, flush=True)
        os.write(2, b"c" * 50_000)
        return super().step(action)


class FailsItsCheck(Told):
    """Fails before training, in the way and the place that FAULT and FAULT_PLACE say."""

    def __init__(self) -> None:
        super().__init__()
        self._fail("make")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self._fail("reset")
        return super().reset(seed=seed)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.t == 2:
            self._fail("step")
        return super().step(action)

    def _fail(self, place: str) -> None:
        if place == os.environ["FAULT_PLACE"] and in_role("Doctor"):
            fail()


class SaysWhere(Told):
    """Writes down in which process it was made."""

    def __init__(self) -> None:
        super().__init__()
        with Path(os.environ["SEEN_FILE"]).open("a") as seen:
            seen.write(f"{os.getpid()} ")
