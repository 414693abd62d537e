"""A run obeys what its control file asks, whoever wrote it, and nothing that was meant for another process."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import t3d
from helpers import small_config
from run_folders import assert_equal, end_of, events_of, folder_of, run
from t3d.config import Config, merge
from t3d.errors import UserError
from t3d.events import ActorEvent, Continued, End, EpisodeEnd, Event, Note, Paused, Resumed, Saved, Start, Update
from t3d.files import Refused, sealed
from t3d.store.checkpoint import newest
from t3d.store.control import CONTROL, ControlRequest, add_request, read_request
from t3d.store.log import newest_session, pauses
from t3d.store.summary import read_summary

SESSION = {"pid": 4, "host": "here", "time": 1e9}


@pytest.fixture(autouse=True)
def _looks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.run.loop.CHECK_SECONDS", 0.0)
    monkeypatch.setattr("t3d.run.loop.PAUSE_SECONDS", 0.01)


def asking(root: Path, answers: dict[type[Event], str], cfg: Config | None = None, **keywords: Any) -> list[Event]:
    """Trains, and asks for something when an event of a kind first comes."""
    cfg = merge(cfg or small_config(), {"run": {"root": str(root)}})
    left, events = dict(answers), list[Event]()
    for event in t3d.train(cfg, **keywords):
        events.append(event)
        if action := left.pop(type(event), ""):
            path = folder_of(events)
            add_request(path, newest_session(path) or {}, action)
    assert not left, "everything was asked"
    return events


def test_a_run_that_was_paused_learns_the_same(tmp_path: Path) -> None:
    straight = run(small_config(), tmp_path / "a")
    paused = asking(tmp_path / "b", {Start: "pause", Paused: "continue"})
    assert [type(event) for event in paused].count(Paused) == 1
    assert_equal(folder_of(straight), folder_of(paused))
    journal = [event.event for event in events_of(folder_of(paused), "journal.jsonl")]
    assert journal[:3] == ["start", "paused", "continued"], "and the log of the training does not have it"


def test_a_paused_run_says_so_and_does_nothing(tmp_path: Path) -> None:
    steps: list[int] = []
    cfg = merge(small_config(), {"run": {"root": str(tmp_path)}})
    events = t3d.train(cfg)
    start = next(events)
    assert isinstance(start, Start)
    path = Path(start.folder)
    add_request(path, vars(start), "pause")
    while not isinstance(next(events), Paused):
        pass
    assert read_summary(path).status == "paused"
    waiting = threading.Thread(target=lambda: steps.extend(event.step for event in events))
    waiting.start()
    time.sleep(0.3)
    assert not steps
    add_request(path, vars(start), "continue")
    waiting.join(30)
    assert steps[-1] == cfg.total_steps
    assert read_summary(path).status == "finished"


def test_time_in_a_pause_is_not_training_time(tmp_path: Path) -> None:
    cfg, ask_later = merge(small_config(), {"run": {"root": str(tmp_path)}}), list[threading.Timer]()
    events: list[Event] = []
    started = time.monotonic()
    for event in t3d.train(cfg):
        events.append(event)
        if isinstance(event, Start):
            add_request(Path(event.folder), vars(event), "pause")
        if isinstance(event, Paused):
            ask_later.append(threading.Timer(1.0, add_request, (folder_of(events), vars(events[0]), "continue")))
            ask_later[0].start()
    passed = time.monotonic() - started
    continued = next(event for event in events if isinstance(event, Continued))
    assert continued.paused_seconds >= 1.0
    assert end_of(events).seconds <= passed - continued.paused_seconds + 0.01
    assert pauses(folder_of(events)) == [(continued.time, continued.paused_seconds)]
    speeds = [event.steps_per_second for event in events if isinstance(event, Update)]
    assert min(speeds) > 0


@pytest.mark.parametrize("when", [Start, Paused], ids=["while it trains", "while it is paused"])
def test_it_saves_and_stops_when_asked(tmp_path: Path, when: type[Event]) -> None:
    before: dict[type[Event], str] = {Start: "pause"} if when is Paused else {}
    events = asking(tmp_path, {**before, when: "save", Saved: "stop"})
    saves = [event for event in events if isinstance(event, Saved)]
    assert saves[0].reason == "asked"
    end = end_of(events)
    assert end.reason == "stopped" and end.saved and end.step < small_config().total_steps
    assert read_summary(folder_of(events)).status == "stopped"
    rest = [*t3d.resume(folder_of(events))]
    assert isinstance(rest[0], Resumed) and end_of(rest).reason == "finished"
    straight = run(small_config(), tmp_path / "straight")
    assert_equal(folder_of(straight), folder_of(events))


def test_a_paused_run_ends_when_its_program_says_so(tmp_path: Path) -> None:
    stop = threading.Event()
    threads: list[threading.Timer] = []
    events: list[Event] = []
    for event in t3d.train(merge(small_config(), {"run": {"root": str(tmp_path)}}), stop=stop):
        events.append(event)
        if isinstance(event, Start):
            add_request(Path(event.folder), vars(event), "pause")
        if isinstance(event, Paused):
            threads.append(threading.Timer(0.1, stop.set))
            threads[0].start()
    assert threads and end_of(events).reason == "stopped" and end_of(events).saved


def test_a_file_for_an_earlier_process_is_not_obeyed(tmp_path: Path) -> None:
    events = asking(tmp_path, {Start: "stop"})
    assert end_of(events).reason == "stopped"
    assert json.loads((folder_of(events) / CONTROL).read_bytes())["control"]["stop"], "the file is still there"
    rest = [*t3d.resume(folder_of(events))]
    assert end_of(rest).reason == "finished"


def linked(file: Path) -> None:
    other = file.with_name("elsewhere.json")
    other.write_bytes(file.read_bytes())
    file.unlink()
    file.symlink_to(other)


def turned_into_a_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def piped(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def changed(**fields: Any) -> Callable[[Path], None]:
    """A file that says something else, with the right hash."""

    def change(file: Path) -> None:
        now = json.loads(file.read_bytes())["control"]
        file.write_bytes(sealed("control", {**now, **fields}))

    return change


DAMAGE: dict[str, Callable[[Path], object]] = {
    "a link": linked,
    "a pipe": piped,
    "a folder": turned_into_a_folder,
    "empty": lambda file: file.write_bytes(b""),
    "not JSON": lambda file: file.write_bytes(b"stop"),
    "a list": lambda file: file.write_bytes(b"[1]"),
    "another hash": lambda file: file.write_bytes(file.read_bytes().replace(b'"save":0', b'"save":1')),
    "long": lambda file: file.write_bytes(file.read_bytes() + b" " * 2**13),
    "deep": lambda file: file.write_bytes(b"[" * 4000),
    "stop is a number": changed(stop=1),
    "save is a text": changed(save="1"),
    "save is negative": changed(save=-1),
    "pid is a text": changed(pid="4"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_file_is_refused(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    add_request(tmp_path, SESSION, "stop")
    assert read_request(tmp_path, SESSION) == ControlRequest(stop=True)
    damage(tmp_path / CONTROL)
    with pytest.raises(Refused):
        read_request(tmp_path, SESSION)


@pytest.mark.parametrize("other", [{"pid": 5}, {"host": "there"}, {"time": 1e9 + 1}], ids=str)
def test_another_process_is_asked_nothing(tmp_path: Path, other: dict[str, Any]) -> None:
    add_request(tmp_path, SESSION, "pause")
    assert read_request(tmp_path, SESSION | other) == ControlRequest()
    assert add_request(tmp_path, SESSION | other, "save") == ControlRequest(save=1), "and starts with a clean sheet"


def test_requests_add_up(tmp_path: Path) -> None:
    for action in ("save", "pause", "save"):
        add_request(tmp_path, SESSION, action)
    assert read_request(tmp_path, SESSION) == ControlRequest(pause=True, save=2)
    assert add_request(tmp_path, SESSION, "continue") == ControlRequest(save=2)
    with pytest.raises(UserError, match="pause, continue, save, stop"):
        add_request(tmp_path, SESSION, "rm -rf")


def test_a_run_goes_on_in_spite_of_a_damaged_file_and_says_so_once(tmp_path: Path) -> None:
    events: list[Event] = []
    for event in t3d.train(merge(small_config(), {"run": {"root": str(tmp_path)}})):
        events.append(event)
        if isinstance(event, Start):
            (Path(event.folder) / CONTROL).write_bytes(b"{}")
    assert end_of(events).reason == "finished"
    notes = [event.text for event in events if isinstance(event, Note)]
    assert len([text for text in notes if text.startswith("control.json is not obeyed")]) == 1


@pytest.mark.parametrize("damage", [b"{}", None], ids=["damaged", "not readable"])
def test_a_pause_lasts_while_the_file_cannot_be_read(tmp_path: Path, damage: bytes | None) -> None:
    events, later = list[Event](), list[threading.Timer]()
    for event in t3d.train(merge(small_config(), {"run": {"root": str(tmp_path)}})):
        events.append(event)
        if isinstance(event, Start):
            add_request(Path(event.folder), vars(event), "pause")
        if isinstance(event, Paused):
            file = folder_of(events) / CONTROL
            file.unlink()
            file.mkdir() if damage is None else file.write_bytes(damage)
            mended = sealed("control", {**asked_by(events[0]), **ControlRequest()._asdict()})
            later.append(threading.Timer(0.5, replaced, (file, mended)))
            later[0].start()
    continued = next(event for event in events if isinstance(event, Continued))
    assert continued.paused_seconds >= 0.5 and end_of(events).reason == "finished"
    assert [event for event in events if isinstance(event, Note) and event.text.startswith(CONTROL)]


def asked_by(start: Event) -> dict[str, Any]:
    """Whom a control file is meant for."""
    return {"pid": vars(start)["pid"], "host": vars(start)["host"], "started": start.time}


def replaced(file: Path, content: bytes) -> None:
    if file.is_dir():
        file.rmdir()
    file.write_bytes(content)


def test_a_run_looks_for_the_file_at_most_once_a_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.run.loop.CHECK_SECONDS", 1.0)
    looks: list[float] = []

    def looked(*_: Any) -> ControlRequest:
        looks.append(time.monotonic())
        return ControlRequest()

    monkeypatch.setattr("t3d.run.loop.read_request", looked)
    started = time.monotonic()
    events = run(small_config(total_steps=600), tmp_path)
    assert isinstance(events[-1], End) and len(looks) <= time.monotonic() - started


def test_actor_processes_wait_with_a_paused_run(tmp_path: Path) -> None:
    """For longer than an actor may hang: one that waits for the learner does not."""
    settings: dict[str, Any] = {"actors": "local:2", "env": {"hang_seconds": 1.0}, "run": {"root": str(tmp_path)}}
    events, later = list[Event](), list[threading.Timer]()
    for event in t3d.train(merge(small_config(total_steps=600), settings)):
        events.append(event)
        if isinstance(event, Start):
            add_request(Path(event.folder), vars(event), "pause")
        if isinstance(event, Paused):
            later.append(threading.Timer(2.5, add_request, (folder_of(events), vars(events[0]), "continue")))
            later[0].start()
    assert end_of(events).reason == "finished" and later
    assert not [event for event in events if isinstance(event, ActorEvent)]
    continued = next(event for event in events if isinstance(event, Continued))
    assert continued.paused_seconds > 2.4


@pytest.mark.timeout(60)
def test_a_paused_run_says_what_went_wrong_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    news = [[], ["a writer has failed"]]
    monkeypatch.setattr("t3d.run.background.BackgroundJobs.news", lambda _: news.pop(0) if news else [])
    events = asking(tmp_path, {Start: "pause", Note: "continue"})
    kinds = [type(event) for event in events if isinstance(event, Note | Paused | Continued)]
    assert kinds == [Paused, Note, Continued]


def test_an_evaluation_after_a_save_in_a_pause_is_saved_too(tmp_path: Path) -> None:
    cfg = small_config(total_steps=200, updates_per_step=0.015, eval={"every_steps": 200})
    events = asking(tmp_path, {EpisodeEnd: "pause", Paused: "save", Saved: "continue"}, cfg)
    checkpoint, _ = newest(folder_of(events) / "checkpoints")
    assert end_of(events).saved and checkpoint is not None
    assert checkpoint.state()["progress"]["evaluated"] == 200
