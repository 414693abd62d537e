"""The columns of a run are what its log says, however the log grows or is damaged."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_runs import TRACE, diagnosis, evaluation, update, write_long_run, write_run
from helpers import small_config
from run_folders import folder_of, run
from t3d.config import Config, Member, merge
from t3d.events import ActingEvent, Alarm, EpisodeEnd, Eval, Event, Update, to_line
from t3d.store.columns import Columns
from t3d.store.log import LARGEST, Position, event_of, pauses, read_end, read_events, read_part
from t3d.store.metrics import KINDS, NOT_METRICS, Metric, entries, series_of, without_pauses
from t3d.store.tables import WHOLE, Table


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of two seeds."""
    return folder_of(run(small_config(seeds=[0, 1], log={"every_steps": 20}), tmp_path_factory.mktemp("runs")))


def indexed(path: Path) -> Columns:
    index = Columns(path)
    assert index.refresh(60)
    return index


def assert_holds(index: Columns, path: Path) -> None:
    """Every metric is what the events say, read one by one, bit for bit."""
    reported: dict[Metric, dict[Member | None, list[tuple[float, ...]]]] = {}
    for event in read_events(path, kinds=KINDS):
        member = None if event.member is None else index.members[event.member]
        for field in dataclasses.fields(event):
            for entry, value in entries(getattr(event, field.name), field.name).items():
                if field.name not in NOT_METRICS and value is not None and not getattr(event, "summary", False):
                    rows = reported.setdefault(Metric(type(event), field.name, entry), {}).setdefault(member, [])
                    rows.append((event.step, value, event.time, math.nan))
    assert reported and reported.keys() == {*index.metrics()}
    for metric, by_member in reported.items():
        found = index.series(metric)
        assert found.keys() == by_member.keys()
        for member, rows in by_member.items():
            expected = series_of(*np.array(rows, np.float64).T)
            assert (found[member].steps == expected.steps).all() and (found[member].values == expected.values).all()
            assert (found[member].times == without_pauses(expected.times, pauses(path))).all()


def test_it_holds_every_number_of_every_event(trained: Path) -> None:
    index = indexed(trained)
    assert index.damaged == 0 and len(index.metrics()) > 50
    assert_holds(index, trained)


def test_it_reads_on_where_it_was(trained: Path, tmp_path: Path) -> None:
    content = (trained / "events.jsonl").read_bytes()
    (tmp_path / "config.toml").write_bytes((trained / "config.toml").read_bytes())
    (tmp_path / "events.jsonl").write_bytes(b"")
    index = Columns(tmp_path)
    for cut in [*range(0, len(content), len(content) // 23), len(content)]:  # mostly in the middle of a line
        (tmp_path / "events.jsonl").write_bytes(content[:cut])
        assert index.refresh(60)
    assert index.size == len(content) and index.damaged == 0
    assert_holds(index, trained)


def test_a_resumed_run_that_has_truncated_its_log_is_read_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0, 2.0, 3.0]})
    index = indexed(path)
    lines = (path / "events.jsonl").read_bytes().splitlines(keepends=True)
    (path / "events.jsonl").write_bytes(b"".join(lines[:2]) + (to_line(evaluation(0, 0, 1000, 7.0)) + "\n").encode())
    assert index.refresh(60)
    found = index.tables[Eval].series(0, Metric(Eval, "mean_return"))
    assert found is not None and found.values.tolist() == [1.0, 7.0]


def test_a_log_is_read_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.store.log.AT_ONCE", 1000)
    path = write_long_run(tmp_path / "a", 2_000)
    index = Columns(path)
    reads = 0
    while not index.refresh(0.02):
        reads += 1
    assert reads > 0
    assert_holds(index, path)


def test_a_long_log_is_read_in_parts_from_all_over_and_is_the_same_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarms = [Alarm(step=step, kind="k", text="t", advice="") for step in range(1, 2001)]
    path = write_long_run(tmp_path / "a", 4_000, seeds=(4, 7))
    with (path / "events.jsonl").open("a") as log:
        log.writelines(to_line(one) + "\n" for one in alarms)
    whole = indexed(path)
    monkeypatch.setattr("t3d.store.columns.PART", 20_000)
    index = Columns(path)
    assert not index.refresh(0) and index.messages[Alarm], "the end comes first"
    sizes = [index.size]
    for _ in range(8):
        assert not index.refresh(0)
        sizes.append(index.size)
    assert sizes == sorted(sizes) and 0 < sizes[0] < sizes[-1] < (path / "events.jsonl").stat().st_size / 4
    steps = index.tables[Update].reports(0, Metric(Update, "updates"))[0]
    last = whole.tables[Update].reports(0, Metric(Update, "updates"))[0, -1]
    assert (np.diff(steps) > 0).all() and np.diff([0, *steps, last]).max() < last / 3, "they are from all over"
    assert index.refresh(60) and index.size == whole.size == (path / "events.jsonl").stat().st_size
    assert_holds(index, path)
    assert index.messages == whole.messages and len(index.messages[Alarm]) == 200
    assert [index.newest_update(one) for one in index.members] == [whole.newest_update(one) for one in whole.members]
    assert index.damaged == whole.damaged == 0


def test_a_log_that_is_truncated_while_its_parts_are_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("t3d.store.columns.PART", 20_000)
    path = write_long_run(tmp_path / "a", 4_000)
    index = Columns(path)
    assert not index.refresh(0)
    content = (path / "events.jsonl").read_bytes()
    (path / "events.jsonl").write_bytes(content[: content.index(b"\n", len(content) // 2) + 1])
    assert index.refresh(60)
    assert_holds(index, path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(0, 30), min_size=1), st.integers(1, 50))
def test_every_line_begins_in_one_part(tmp_path: Path, lengths: list[int], size: int) -> None:
    lines = [bytes([65 + place % 26]) * length for place, length in enumerate(lengths)]
    content = b"".join(line + b"\n" for line in lines)
    (tmp_path / "events.jsonl").write_bytes(content + b"not complete")
    end = read_end(tmp_path)
    assert end == Position(len(content), lines[-1] + b"\n")
    parts = [read_part(tmp_path, at, min(at + size, end.offset), end) for at in range(0, end.offset, size)]
    assert [line for part in parts for line in part or []] == lines


def test_the_newest_trace_of_each_member_is_kept(tmp_path: Path) -> None:
    index = indexed(write_long_run(tmp_path / "a", 500, seeds=(4, 7)))
    for member in index.members:
        event = index.newest_update(member)
        assert event is not None and event.seed == member.seed
        assert event.updates == index.tables[Update].reports(0, Metric(Update, "updates"))[0, -1]
        assert {*event.values} == {*TRACE}


NUMBERS = st.none() | st.integers(-(10**12), 10**12) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(st.tuples(NUMBERS, NUMBERS, st.booleans()), min_size=1, max_size=20))
def test_lines_of_numbers_become_columns(rows: list[tuple[Any, Any, bool]]) -> None:
    events: list[Event] = [
        EpisodeEnd(step=n, member=0, seed=0, time=1.5, env=0, episode=n, total_reward=r, length=length, terminated=over)
        for n, (r, length, over) in enumerate(rows)
    ]
    lines = [to_line(event).encode() for event in events]
    table = Table(EpisodeEnd, [Member(0)])
    assert table.add(lines, 0) == 0
    for name in ("total_reward", "length", "terminated"):
        values = [json.loads(line)[name] for line in lines]
        known = [float(value) for value in values if value is not None and abs(value) < LARGEST]
        assert table.reports(0, Metric(EpisodeEnd, name))[2].tolist() == known, name


STRANGE = [
    b"",
    b"\x00\xff\xfe",
    b"{}",
    b'{"event": "episode"}',
    b'{"event": "episode", "step": 1}',
    b'{"event": "episode", "step": "<script>", "member": 0, "seed": 0, "time": 1}',
    b'{"event": "episode", "step": 1e400, "member": 0, "seed": 0, "time": 1}',
    b'{"event": "episode", "step": -1, "member": 0, "seed": 0, "time": 1, "total_reward": 1}',
    b'{"event": "episode", "step": 1, "member": 9, "seed": 0, "time": 1, "total_reward": 1}',
    b'{"event": "episode", "step": 1, "member": 0, "seed": 5, "time": 1, "total_reward": 1}',
    b'{"event": "update", "step": 1, "member": 0.5, "seed": 0, "time": 1, "q_mean": 1}',
    b'{"event": "update", "step": 1, "member": [], "seed": 0, "time": 1, "q_mean": 1}',
    b'{"event": "update", "step": 1, "member": 0, "seed": 0, "time": NaN, "q_mean": 1}',
    b'{"event": "alarm", "step": 1, "text": 5}',
    b'{"event": "diagnostics", "step": 1, "member": 0, "seed": 0, "time": 1, "td_quantiles": ["x"]}',
    b'{"event": "eval", "step": ' + b"[" * 5000,
]


@pytest.mark.parametrize("line", STRANGE, ids=range(len(STRANGE)))
def test_a_damaged_line_costs_only_itself(tmp_path: Path, line: bytes) -> None:
    events = [update(0, 0, step, q_mean=float(step)) for step in range(5)]
    path = write_run(tmp_path / "a", {0: [1.0, 2.0]}, events=events)
    before = indexed(path)
    lines = (path / "events.jsonl").read_bytes().splitlines()
    (path / "events.jsonl").write_bytes(b"\n".join([*lines[:3], line, *lines[3:], b""]))
    after = indexed(path)
    assert after.damaged == 1
    for kind in (Eval, Update):
        assert after.tables[kind].rows == before.tables[kind].rows > 0


NO_NUMBERS: list[Any] = [True, None, [], {}, "5", 1e301]
WRONG: list[dict[str, Any]] = [
    *[{name: value} for name in ("mean_return", "std_return", "updates") for value in NO_NUMBERS],
    {"mean_return": [0.0] * 200},
    {"std_return": {"a": 1.0}},
    {"step": True},
    {"seed": False},
    {"best": 5},
]


@pytest.mark.parametrize("change", WRONG, ids=lambda change: str(change)[:30])
def test_an_evaluation_without_its_numbers_is_damage_to_every_reader(tmp_path: Path, change: dict[str, Any]) -> None:
    path = write_run(tmp_path / "a", {0: [1.0, 2.0]})
    before = indexed(path).evaluations()
    fields = json.loads(to_line(evaluation(0, 0, 1, 9.0))) | change
    line = json.dumps(fields)
    assert event_of(line.encode()) is None, "alarms and sinks leave it out"
    lines = (path / "events.jsonl").read_text().splitlines()
    (path / "events.jsonl").write_text("\n".join([*lines[:2], line, *lines[2:], ""]))
    after = indexed(path)
    assert after.damaged == 1 and after.evaluations() == before


def test_evaluations_of_a_thinned_table_are_whole(tmp_path: Path) -> None:
    index = indexed(write_run(tmp_path / "a", {0: [float(place) for place in range(10)]}))
    known = index.evaluations()
    assert index.thin() and index.tables[Eval].rows == 6
    [(member, left)] = index.evaluations().items()
    assert left[-1] == known[member][-1] and all(not math.isnan(number) for stored in left for number in stored[:-1])


def test_an_unknown_event_of_a_newer_version_is_skipped(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]})
    with (path / "events.jsonl").open("a") as log:
        log.write('{"event": "telepathy", "step": 5, "member": null, "seed": null, "time": 5.0}\n')
    assert indexed(path).damaged == 0


def test_numbers_that_cannot_be_drawn_are_left_out(tmp_path: Path) -> None:
    events = [update(0, 0, step, q_mean) for step, q_mean in enumerate([1.0, math.nan, 1e301, 2.0])]
    found = indexed(write_run(tmp_path / "a", {0: [1.0]}, events=events)).tables[Update]
    drawn = found.series(0, Metric(Update, "q_mean"))
    assert drawn is not None and drawn.values.tolist() == [1.0, 2.0] and found.rows == 4


def test_thousands_of_entries_are_not_kept(tmp_path: Path) -> None:
    where = {"step": 1, "member": 0, "seed": 0, "time": 1.0}
    wide = json.loads(to_line(diagnosis(where))) | {"dead_units": {str(n): 1.0 for n in range(5000)}}
    path = write_run(tmp_path / "a", {0: [1.0]})
    with (path / "events.jsonl").open("a") as log:
        log.write(json.dumps(wide) + "\n")
    index = indexed(path)
    assert index.damaged == 0 and 10 < len(index.metrics()) < 100


def test_what_is_said_of_the_whole_run_has_its_own_place(tmp_path: Path) -> None:
    shares: dict[str, Any] = {"since": 0, "age_median": 1, "age_p99": 2, "ring_fill": 0.1}
    shares |= {"actors_waited": 0.1, "learner_waited": 0.1, "actors": 2, "restarts": 0}
    events = [ActingEvent(step=step, ratio=step / 10, **shares) for step in (1, 2)]
    events.append(ActingEvent(step=2, ratio=9.0, summary=True, **shares))
    index = indexed(write_run(tmp_path / "a", {0: [1.0]}, events=events))
    found = index.tables[ActingEvent].series(WHOLE, Metric(ActingEvent, "ratio"))
    assert found is not None and found.values.tolist() == [0.1, 0.2], "without the summary, which repeats them"


def test_only_the_newest_news_is_kept(tmp_path: Path) -> None:
    alarms = [Alarm(step=step, kind="k", text=f"no. {step}", advice="") for step in range(1000)]
    told = indexed(write_run(tmp_path / "a", {0: [1.0]}, events=alarms)).messages[Alarm]
    assert len(told) == 200 and told[-1] == alarms[-1]


@given(st.lists(st.tuples(st.integers(0, 1), st.none() | st.floats(-9, 9)), max_size=40))
def test_a_thinned_table_has_half_the_rows_and_the_smallest_and_largest_values(
    reports: list[tuple[int, float | None]],
) -> None:
    table = Table(Update, merge(Config(), {"seeds": [0, 1]}).members)
    for step, (member, value) in enumerate(reports):
        table.add([to_line(update(member, member, step, math.nan if value is None else value)).encode()], step)
    before = [table.reports(member, Metric(Update, "q_mean")) for member in (0, 1)]
    counts = [sum(member == one for member, _ in reports) for one in (0, 1)]
    assert table.thin() == (max(counts) > 4)
    assert table.rows == sum(count - 2 * ((count - 1) // 4) for count in counts if count)
    for member in (0, 1):
        steps, _, values = table.reports(member, Metric(Update, "q_mean"))
        assert (np.diff(steps) > 0).all()
        own = [step for step, (one, _) in enumerate(reports) if one == member]
        fours = [own[start : start + 4] for start in range(0, len(own), 4)]
        for four in fours[: (len(own) - 1) // 4]:
            was, now = (
                found[np.isin(at, four)] for at, found in ((before[member][0], before[member][2]), (steps, values))
            )
            kept = [value for value in was if value in (min(was), max(was))]
            assert [*now] == [*dict.fromkeys(kept)]
        rest = own[(len(own) - 1) // 4 * 4 :] if own else []
        assert [*values[np.isin(steps, rest)]] == [*before[member][2][np.isin(before[member][0], rest)]]


def test_a_table_grows_without_losing_rows() -> None:
    members = merge(Config(), {"seeds": [0, 1]}).members
    grown = Table(Update, members)
    for step in range(300):
        grown.add([to_line(update(step % 2, step % 2, step, float(step))).encode()], 0)
    found = grown.series(1, Metric(Update, "q_mean"))
    assert found is not None and found.values.tolist() == [*map(float, range(1, 300, 2))]
