"""What workers print: kept while it is little, never in anybody's way."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from actor_helpers import actor_config, of_kind
from t3d.actors import supervisor
from t3d.actors.supervisor import WorkerLog
from t3d.events import ActorEvent, End, Note
from t3d.run.live import train


def full_disk(path: Path) -> BinaryIO:
    return open("/dev/full", "wb", buffering=0)  # noqa: PTH123


@pytest.fixture
def log() -> Iterator[WorkerLog]:
    log = WorkerLog()
    yield log
    if log._thread.is_alive():
        log.close()


def test_the_newest_is_kept_in_two_files(tmp_path: Path, log: WorkerLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "MAX_BYTES", 5000)
    log.print_to(tmp_path / "workers.log")
    lines = [b"line %4d of a simulator\n" % number for number in range(1000)]
    for line in lines:
        os.write(log.fd, line)
        time.sleep(0.0001)  # or all would come at once
    log.close()
    kept = [(tmp_path / name).read_bytes() for name in ("workers.log.1", "workers.log")]
    assert b"".join(lines).endswith(b"".join(kept)) and len(kept[0]) > 2500
    assert max(map(len, kept)) <= 5000 and len(list(tmp_path.iterdir())) == 2
    assert log.news() == []


def test_a_full_disk_is_told_once_and_never_meets_whoever_prints(
    tmp_path: Path, log: WorkerLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "open_log", full_disk)
    log.print_to(tmp_path / "workers.log")
    for _ in range(100):
        os.write(log.fd, b"x" * 10_000)  # a megabyte, of which a pipe holds a sixteenth
    log.close()
    assert log.news() == ["what environments print is dropped, because it cannot be written: No space left on device"]
    assert log.news() == []


def test_a_run_goes_on_when_nothing_can_be_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "open_log", full_disk)
    events = list(train(actor_config(tmp_path, "Chatty", seeds=[0], actors="local:1", eval={"every_steps": 100})))
    assert of_kind(events, End)[0].reason == "finished" and not of_kind(events, ActorEvent)
    assert sum("No space left on device" in event.text for event in of_kind(events, Note)) == 1


def test_a_link_in_the_place_of_the_log_is_not_followed(tmp_path: Path, log: WorkerLog) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "workers.log").symlink_to(tmp_path / "precious")
    log.print_to(tmp_path / "workers.log")
    os.write(log.fd, b"something")
    log.close()
    assert (tmp_path / "precious").read_text() == "mine" and "it is a link" in log.news()[0]


def test_a_program_that_prints_for_ever_does_not_keep_the_thread(tmp_path: Path, log: WorkerLog) -> None:
    log.print_to(tmp_path / "workers.log")
    with subprocess.Popen(["yes"], stdout=log.fd) as program:
        while not (tmp_path / "workers.log").exists():
            time.sleep(0.01)
        begun = time.monotonic()
        log.close()
        assert time.monotonic() - begun < 20 and not log._thread.is_alive()
        program.kill()


def test_what_was_printed_before_the_end_is_kept(tmp_path: Path, log: WorkerLog) -> None:
    log.print_to(tmp_path / "workers.log")
    os.write(log.fd, b"last words")
    log.close()
    assert (tmp_path / "workers.log").read_bytes() == b"last words"


def test_before_there_is_a_file_it_is_our_stderr(log: WorkerLog, capfd: Any) -> None:
    os.write(log.fd, b"to whom it may concern")
    log.close()
    assert capfd.readouterr().err == "to whom it may concern"
