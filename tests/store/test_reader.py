"""The one reader of run logs: whole or from an offset, of this T3D or a newer one."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

import t3d
from helpers import small_config
from t3d.errors import UserError
from t3d.events import KINDS, ActorEvent, Alarm, Eval, Event, Note, from_line, to_line
from t3d.store import log
from t3d.store.log import START, TYPES, read_events, read_log
from t3d.store.metrics import KINDS as REPORTS
from t3d.store.reader import locate, open_run
from t3d.store.summary import read_summary

FUTURE = '{"event": "dream", "step": 1, "time": 1.0, "what": {"electric": "sheep"}}'


def note(text: str) -> Note:
    return Note(step=1, text=text, time=1.0)


def append(run: Path, text: str) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write(text)


def write(run: Path, *events: Event) -> None:
    append(run, "".join(to_line(event) + "\n" for event in events))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run; tests only read it."""
    root = tmp_path_factory.mktemp("runs")
    cfg = small_config(total_steps=120, eval={"episodes": 1, "max_steps": 3}, run={"root": str(root), "name": "run"})
    list(t3d.train(cfg))
    return root / "run"


def test_reading_step_by_step_gives_what_reading_at_once_gives(trained: Path, tmp_path: Path) -> None:
    whole = (trained / "events.jsonl").read_bytes()
    place, events = START, list[Event]()
    for length in [*range(0, len(whole), 97), len(whole)]:
        (tmp_path / "events.jsonl").write_bytes(whole[:length])
        lines, place, restarted = log.read_lines(tmp_path, place)
        assert place.offset == whole[:length].rfind(b"\n") + 1, "a line that is being written is left for later"
        assert not restarted
        events += [event for event in map(log.event_of, lines) if event is not None]
    assert events == read_events(trained) and len(events) > 5
    assert log.read_lines(tmp_path, place) == ([], place, False) and place.offset == len(whole)


def test_what_lies_before_the_offset_is_not_read_again(tmp_path: Path) -> None:
    write(tmp_path, note("one"))
    _, end, _ = log.read_lines(tmp_path)
    write(tmp_path, note("two"))
    lines, _, restarted = log.read_lines(tmp_path, end)
    assert [log.event_of(line) for line in lines] == [note("two")] and not restarted


@pytest.mark.parametrize("regrown", [0, 1, 7, 500])  # 7: a line of the same length
def test_a_log_that_a_resume_cut_back_is_read_from_the_start(tmp_path: Path, regrown: int) -> None:
    write(tmp_path, note("kept"), note("cut off"))
    _, end, _ = log.read_lines(tmp_path)
    os.truncate(tmp_path / "events.jsonl", len(to_line(note("kept"))) + 1)
    after = [note("x" * regrown)] if regrown else []
    write(tmp_path, *after)
    lines, end, restarted = log.read_lines(tmp_path, end)
    assert [log.event_of(line) for line in lines] == [note("kept"), *after] and restarted
    assert end.offset == (tmp_path / "events.jsonl").stat().st_size
    assert not log.read_lines(tmp_path, end)[2]


def test_only_the_kinds_asked_for_are_parsed(trained: Path, tmp_path: Path) -> None:
    evals = [event for event in read_events(trained) if isinstance(event, Eval)]
    (tmp_path / "events.jsonl").write_bytes((trained / "events.jsonl").read_bytes())
    append(tmp_path, '{"event": "update", "no": json}\n{"event": "evaluations", "no": json}\n')
    assert read_log(tmp_path, kinds=(Eval,)) == (evals, 0), "they look like events of other kinds"
    assert read_log(tmp_path)[1] == 2
    append(tmp_path, '{"event": "update", "no": json\n')
    assert read_log(tmp_path, kinds=(Eval,)) == (evals, 1), "this one does not"


def test_kinds_and_fields_of_a_newer_version_are_skipped_without_a_warning(
    trained: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [json.loads(line) for line in (trained / "events.jsonl").read_text().splitlines()]
    newer = [json.dumps({**line, "mood": [1, {"sunny": None}]}) + "\n" + FUTURE + "\n" for line in lines]
    (tmp_path / "config.toml").write_bytes((trained / "config.toml").read_bytes())
    append(tmp_path, "".join(newer) + '{"event": "from the future"}\n')
    with caplog.at_level(logging.DEBUG, "t3d"):
        assert read_events(tmp_path) == read_events(trained)
        assert open_run(tmp_path).evals == open_run(trained).evals
    assert caplog.text == ""
    assert read_log(tmp_path)[1] == read_log(tmp_path, kinds=(Eval,))[1] == 0
    assert read_summary(tmp_path).env == read_summary(trained).env


def test_every_kind_comes_back_without_the_fields_that_nobody_knows() -> None:
    assert from_line(FUTURE) is None
    fields = json.loads(to_line(note("hello")))
    assert from_line(json.dumps({**fields, "mood": 1})) == note("hello")
    for kind in KINDS:
        with pytest.raises(ValueError, match="missing"):
            from_line(json.dumps({"event": kind, "time": 1.0, "mood": 1}))


@pytest.mark.parametrize("wrong", [None, 5, [[[]]], {}])
def test_events_that_could_not_be_shown_are_damaged(tmp_path: Path, wrong: Any) -> None:
    sound = [note("x"), ActorEvent(step=1, time=1.0, actor=3, what="lost", text="x", restarts=1)]
    write(tmp_path, *sound)
    for event, field in [(sound[0], "text"), (sound[1], "text"), (sound[1], "what")]:
        append(tmp_path, json.dumps({**json.loads(to_line(event)), field: wrong}) + "\n")
    assert read_log(tmp_path) == (sound, 3)


def test_a_folder_without_a_run_and_no_folder_at_all_are_told_apart(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert locate("run", trained.parent) == trained == locate(trained, tmp_path)
    with pytest.raises(UserError, match="empty cannot be read as a run: it has no events"):
        locate("empty", tmp_path)
    with pytest.raises(UserError, match=r"there is no run named rum in .*, did you mean run"):
        locate("rum", trained.parent)


def test_the_folder_with_the_log_is_the_run_that_is_meant(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one of the same name that only holds settings."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    monkeypatch.chdir(tmp_path)
    assert locate("run", trained.parent) == trained


ALARM = Alarm(step=5, kind="dead-units", text="95% of the units are dead.", advice="a lower rate.", time=1.0)
WRONG: dict[str, list[Any]] = {
    **{"kind": [None, 5, []], "text": [7, None], "advice": [{}]},
    **{"step": ["x", None, 1.5], "member": ["0", []]},
}


@pytest.mark.parametrize("field", WRONG)
def test_an_alarm_with_wrong_values_is_a_damaged_line(tmp_path: Path, field: str) -> None:
    write(tmp_path, ALARM)
    for value in WRONG[field]:
        append(tmp_path, json.dumps({**json.loads(to_line(ALARM)), field: value}) + "\n")
    assert read_log(tmp_path) == ([ALARM], len(WRONG[field]))


def test_every_field_of_an_event_that_is_checked_has_a_check() -> None:
    annotations = {str(field.type) for kind in (*REPORTS, Alarm) for field in dataclasses.fields(kind)}
    assert annotations <= TYPES.keys()


FIGURES: dict[str, tuple[Any, list[Any]]] = {  # a value of the type, and others
    "float": (1.5, ["1", [], {}, True, 1e301]),
    "int": (1, [None, 1.0, "1", True]),
    "bool": (False, [1, None]),
    "str": ("", [1, None]),
    "list[float]": ([1, None], [None, 5, ["x"]]),
    "list[int]": ([], [None, [1.5], [None]]),
    "dict[str, int]": ({"a": 1}, [None, [], {"a": 1.5}]),
    "dict[str, float]": ({"a": 1.0}, [None, [], {"a": "x"}]),
    "dict[str, Any]": ({"a": "x"}, [None, []]),
}


@pytest.mark.parametrize("annotation", FIGURES)
def test_what_is_not_of_a_fields_type_is_refused(annotation: str) -> None:
    good, others = FIGURES[annotation]
    assert TYPES[annotation](good)
    assert not any(TYPES[annotation](value) for value in others)


def test_lines_are_read_a_few_at_a_time_and_only_complete_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "AT_ONCE", 10)
    content = [b"a" * 25, b"", b"b", b"c" * 9, b"d" * 10, b"e"]
    (tmp_path / "events.jsonl").write_bytes(b"\n".join(content))  # the last line is not complete
    found, place, reads = list[bytes](), log.START, 0
    while (chunk := log.read_lines(tmp_path, place))[0]:
        lines, place, restarted = chunk
        assert not restarted
        found, reads = found + lines, reads + 1
    assert found == content[:-1] and reads > 2
    with (tmp_path / "events.jsonl").open("ab") as file:
        file.write(b"\n")
    assert log.read_lines(tmp_path, place)[0] == [b"e"]
    (tmp_path / "events.jsonl").write_bytes(b"new\n")
    lines, _, restarted = log.read_lines(tmp_path, place)
    assert restarted and lines == [b"new"]


def test_a_line_without_an_end_is_cut_so_that_what_follows_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "AT_ONCE", 10)
    monkeypatch.setattr(log, "LONGEST_LINE", 20)
    (tmp_path / "events.jsonl").write_bytes(b"x" * 100 + b"\nlast\n")
    found, place = list[bytes](), log.START
    while (chunk := log.read_lines(tmp_path, place))[0]:
        found, place = found + chunk[0], chunk[1]
    assert b"".join(found) == b"x" * 100 + b"last" and found[-1] == b"last"
    assert place.offset == 106


def test_a_bug_of_ours_is_not_counted_as_a_damaged_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, note("x"))

    def fail(text: str) -> None:
        raise AttributeError("ours")

    monkeypatch.setattr("t3d.store.log.from_line", fail)
    with pytest.raises(AttributeError, match="ours"):
        read_log(tmp_path)
