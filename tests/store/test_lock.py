"""One writer for one folder."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import t3d
from faults import Kept, contents_of
from hostile import Hostile
from t3d.errors import UserError
from t3d.events import End, Resumed
from t3d.store.checkpoint import newest

pytestmark = pytest.mark.usefixtures("shared_segments")

HOLD = "import sys, time; from pathlib import Path; from t3d.store.lock import Lock; "
HOLD += "held = Lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(600)"


def holder_of(run: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_and_takes_over_after_a_kill(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    from t3d.app.cli import main  # noqa: PLC0415

    with holder_of(kept.run) as process:
        before = contents_of(kept.run)
        with pytest.raises(UserError, match=rf"is in use by process {process.pid} on .*; stop that run first"):
            list(t3d.resume(kept.run))
        assert main(["resume", str(kept.run), "--no-video"]) == 2
        assert f"process {process.pid} " in capsys.readouterr().err
        assert contents_of(kept.run) == before, "who is refused changes nothing"
        process.send_signal(signal.SIGKILL)
        process.wait()
    events = list(t3d.resume(kept.run))
    assert isinstance(events[0], Resumed)
    assert any(f"process {process.pid} on " in note and "taken over" in note for note in events[0].notes)
    assert isinstance(events[-1], End) and events[-1].reason == "finished"
    assert (kept.run / "lock").read_bytes() == b"", "left in order"


def test_a_run_in_another_process_is_left_alone_until_it_is_killed(tmp_path: Path) -> None:
    """The holder is a real training, killed in the middle."""
    command = [sys.executable, "-m", "t3d", "train", "Pendulum-v1", "--preset", "quick", "--total-steps", "100000"]
    command += ["--random-steps", "100", "--checkpoint.every-steps", "100", "--no-video", "--eval.episodes", "1"]
    command += ["--eval.every-steps", "50000", "--run.root", str(tmp_path), "--run.name", "held", "--threads", "1"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 60
            while newest(tmp_path / "held" / "checkpoints")[0] is None and time.monotonic() < until:
                time.sleep(0.05)
            with pytest.raises(UserError, match=rf"process {process.pid} on "):
                list(t3d.resume(tmp_path / "held"))
        finally:
            process.send_signal(signal.SIGKILL)
    events = t3d.resume(tmp_path / "held")
    resumed = next(events)
    events.close()
    assert isinstance(resumed, Resumed) and resumed.step >= 100
    assert [note for note in resumed.notes if f"process {process.pid} on " in note and "taken over" in note]
    assert [note for note in resumed.notes if "damaged" in note] == []


@pytest.mark.parametrize(
    "text",
    [
        b'{"pid": 1e999, "host": "x"}',
        b'{"pid": "many", "host": "x"}',
        b'{"pid": 1, "host": {"a": []}}',
        b"[]",
        b"7",
        b"\xff\xfe",
        b"[" * 999,
    ],
)
def test_whatever_the_lock_says_the_run_goes_on(hostile: Hostile, text: bytes) -> None:
    (hostile.run / "lock").write_bytes(text)
    (answer,) = hostile.meet("resume")
    assert answer["outcome"] == "done"
