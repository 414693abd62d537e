"""An environment that hangs in the learner's own process: the doctor breaks it off, or at least says so."""

from __future__ import annotations

import faulthandler
import hashlib
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import helpers
import t3d
from t3d.errors import UserError
from t3d.world.doctor import examine, watching
from worlds import Sound, broken

SECONDS = 0.2


def hang(*_: Any, **__: Any) -> Any:
    """Not even what is raised in it ends it."""
    while True:
        try:
            time.sleep(5)
        except Exception:
            continue


def hang_in_episode(self: Sound, action: Any) -> Any:
    return hang() if self.t == 7 else Sound.step(self, action)


HANGS = {
    "making the environment": broken(__init__=hang),
    "reset of episode 0": broken(reset=hang),
    "step 8 of episode 0": broken(step=hang_in_episode),
    "closing the environment": broken(close=hang),
}


@pytest.mark.timeout(30, method="thread")  # the other method needs the alarm, and then the doctor leaves it alone
@pytest.mark.parametrize("words", HANGS)
def test_a_call_that_does_not_come_back_is_broken_off(words: str) -> None:
    begun = time.monotonic()
    with pytest.raises(UserError, match=rf"{words} has taken over 0.2 s; .*env.hang_seconds.*test_watch.py, line \d+"):
        examine(HANGS[words], call_seconds=SECONDS)
    assert time.monotonic() - begun < 15
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.timeout(30, method="thread")
def test_a_training_whose_environment_hangs_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.run.build.CALL_SECONDS", SECONDS)
    cfg = helpers.small_config(run={"root": str(tmp_path)}, env={"hang_seconds": 1.0})
    with pytest.raises(UserError, match=r"reset of episode 0 has taken over 1 s; .*: env.hang_seconds above 1 "):
        list(t3d.train(cfg, make_env=broken(reset=hang)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(30, method="thread")
def test_slow_is_not_hanging() -> None:
    """The limit is one of each call: together they may take longer."""

    def slow(self: Any, **keywords: Any) -> Any:
        time.sleep(0.6 * SECONDS)
        return Sound.reset(self, **keywords)

    begun = time.monotonic()
    examine(broken(reset=slow), call_seconds=SECONDS)
    assert time.monotonic() - begun > SECONDS


@pytest.mark.timeout(30, method="thread")
def test_somebody_elses_alarm_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        assert examine(broken(close=lambda self: time.sleep(3 * SECONDS)), call_seconds=SECONDS) == []
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)
    assert "closing the environment has taken over 0.2 s" in capsys.readouterr().err


def test_in_another_thread_stderr_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    warnings: list[list[str]] = []
    sleepy = broken(close=lambda self: time.sleep(3 * SECONDS))
    thread = threading.Thread(target=lambda: warnings.append(examine(sleepy, call_seconds=SECONDS)))
    thread.start()
    thread.join()
    assert warnings == [[]], "it came back after all"
    assert capsys.readouterr().err.count("closing the environment has taken over 0.2 s") == 1


@pytest.mark.timeout(30, method="thread")
def test_code_in_c_is_warned_of_while_it_still_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot be interrupted before it returns to Python."""
    returned: list[float] = []

    def compute(self: Any) -> None:
        begun = time.monotonic()
        rounds = 100_000
        while time.monotonic() - begun < 10:  # until one call takes long enough on this machine
            started = time.monotonic()
            hashlib.pbkdf2_hmac("sha256", b"a", b"b", rounds)
            returned.append(time.monotonic() - started)
            rounds *= 4

    with pytest.raises(UserError, match=r"closing the environment has taken over 0.2 s"):
        examine(broken(close=compute), call_seconds=SECONDS)
    assert capsys.readouterr().err.count("closing the environment has taken over 0.2 s") == 1


@pytest.mark.parametrize("was_enabled", [True, False])
def test_a_crash_says_where_it_was(was_enabled: bool) -> None:
    before = faulthandler.is_enabled()
    try:
        (faulthandler.enable if was_enabled else faulthandler.disable)()
        with watching(60):
            assert faulthandler.is_enabled()
        assert faulthandler.is_enabled() is was_enabled, "as it was"
    finally:
        (faulthandler.enable if before else faulthandler.disable)()


def test_a_crash_of_the_process_prints_the_line(tmp_path: Path) -> None:
    source = "import os, signal, test_doctor\n\nclass Crash(test_doctor.Sound):\n    def step(self, action):\n"
    (tmp_path / "crash.py").write_text(f"{source}        os.kill(os.getpid(), signal.SIGSEGV)\n")
    program = "import sys; from t3d.world.doctor import examine; import crash; examine(crash.Crash)"
    paths = [str(tmp_path), *sys.path]
    command = [sys.executable, "-c", f"import sys; sys.path[:] = {paths!r}; {program}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == -signal.SIGSEGV
    assert "Segmentation fault" in finished.stderr and 'crash.py", line 5 in step' in finished.stderr
