"""Run folders with lines and values that no T3D wrote: every command answers, and one bad run hides no other."""

from __future__ import annotations

import json
import logging
import random
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

import faults
import t3d
from helpers import small_config
from t3d.app.cli import main
from t3d.config import Config, Member, to_toml
from t3d.errors import UserError
from t3d.store.log import pauses, read_events
from t3d.store.reader import open_run
from t3d.store.summary import read_summaries, read_summary

SHOW, PLOT, EVAL = ["runs", "show"], ["plot"], ["eval", "--episodes", "1"]
VALUES: list[Any] = [
    "x",
    "",
    [],
    {},
    None,
    -1,
    0.5,
    True,
    2**62,
    10**30,
    10**400,
    -(10**30),
    1e300,
    [0] * 5000,
    {"x": {}},
]
FEW: list[Any] = ["x", [], None, -1, 10**400, 1e300]
DEEP = json.loads("[" * 400 + "]" * 400)
BAD_LINES = [
    b"5",
    b"[]",
    b'"x"',
    b'{"event": []}',
    b'{"event": "eval"}',
    b'{"event": 5}',
    b"\xff\xfe",
    b"\x00",
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    cfg = small_config(total_steps=120, eval={"episodes": 1, "max_steps": 3}, run={"root": str(root), "name": "good"})
    list(t3d.train(cfg))
    return root / "good"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "good")
    return shutil.copytree(trained, tmp_path / "bad")


def assert_answered(run: Path, capsys: pytest.CaptureFixture[str], *commands: list[str]) -> None:
    """The commands work, or say one sentence and leave with code 2."""
    for command in commands:
        code = main([*command, str(run)])
        err = capsys.readouterr().err
        assert (code == 0 and not err) or (code == 2 and err.startswith("error: ") and err.count("\n") == 1), (
            command,
            err,
        )


def assert_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The other runs of the folder are listed, and this one is listed or named as skipped."""
    assert main(["runs", "--root", str(run.parent)]) == 0
    out = capsys.readouterr().out
    assert any(line.startswith("good ") for line in out.splitlines())
    assert any(line.startswith(("bad ", "skipped bad: ")) for line in out.splitlines())
    return out


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_bytes().splitlines()]


def write_lines(file: Path, lines: list[dict[str, Any]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("time", [10**400, 1e301, "x", None])
def test_a_journal_whose_times_cannot_be_is_plotted(run: Path, time: Any, capsys: pytest.CaptureFixture[str]) -> None:
    first, *_ = lines_of(run / "journal.jsonl")
    write_lines(run / "journal.jsonl", [first, {**first, "event": "continued", "time": time, "paused_seconds": time}])
    assert pauses(run) == []
    assert_answered(run, capsys, PLOT)


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_line_that_cannot_be_read_is_left_out_and_counted(
    run: Path, trained: Path, line: bytes, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    (run / "events.jsonl").write_bytes(b"".join([*lines[:3], line + b"\n", line + b"\n", *lines[3:], line + b"\n"]))
    with caplog.at_level(logging.WARNING, "t3d"):
        assert read_events(run) == read_events(trained)
    assert f"3 lines of {run / 'events.jsonl'} cannot be read and are left out" in caplog.text
    assert open_run(run).evals == open_run(trained).evals
    for command in (SHOW, EVAL):
        assert main([*command, str(run)]) == 0
    if line == b"5":
        pytest.importorskip("matplotlib")
        pytest.importorskip("imageio_ffmpeg")
        for command in (PLOT, ["record", "--steps", "2"]):
            assert main([*command, str(run)]) == 0


def test_a_line_that_a_kill_cut_short_is_not_complained_about(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "eval", "st')
    with caplog.at_level(logging.WARNING, "t3d"):
        read_events(run)
    assert caplog.text == ""


def test_show_counts_the_lines_that_it_leaves_out(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (run / "events.jsonl").read_bytes().splitlines(keepends=True)
    broken = [b'{"event": "eval", "seed": 0}\n', b"\x00\xff\n", b'{"event": "note"}\n']
    (run / "events.jsonl").write_bytes(b"".join([*lines[:2], *broken, *lines[2:]]))
    assert main(["runs", "show", str(run)]) == 0
    assert "3 lines of events.jsonl cannot be read and are left out" in capsys.readouterr().out
    assert main(["runs", "show", str(run.with_name("good"))]) == 0
    assert "cannot be read" not in capsys.readouterr().out


@pytest.mark.parametrize("trials", [120, pytest.param(10_000, marks=pytest.mark.slow)])
def test_wrong_values_at_both_ends_of_the_log_and_in_the_journal(
    run: Path, trials: int, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = [(name, number) for name in ("events.jsonl", "journal.jsonl") for number in (0, -1)]
    sound = {name: lines_of(run / name) for name, _ in ends}
    changes = [
        (name, number, place, value)
        for name, number in ends
        for place in faults.places(sound[name][number])
        for value in [*VALUES, DEEP]
    ]
    for name, number, place, value in random.Random(30).sample(changes, min(trials, len(changes))):
        lines = json.loads(json.dumps(sound[name]))
        faults.put_at(lines[number], place, value)
        write_lines(run / name, lines)
        assert_listed(run, capsys)
        write_lines(run / name, sound[name])


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("field", ["step", "time", "event", "config", "seconds", "reason", "pid", "seed", "host"])
def test_wrong_values_are_met_with_a_sentence(
    run: Path, number: int, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = lines_of(run / "events.jsonl")
    for value in FEW:
        lines = json.loads(json.dumps(sound))
        lines[number][field] = value
        write_lines(run / "events.jsonl", lines)
        (run / "journal.jsonl").unlink(missing_ok=True)
        assert_answered(run, capsys, SHOW, EVAL)
        assert_listed(run, capsys)


def test_missing_fields_are_met_with_a_sentence(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = lines_of(run / "events.jsonl")
    (run / "journal.jsonl").unlink()
    for number in (0, -1):
        for field in sound[number]:
            lines = json.loads(json.dumps(sound))
            del lines[number][field]
            write_lines(run / "events.jsonl", lines)
            assert_answered(run, capsys, SHOW, EVAL)
            assert_listed(run, capsys)


@pytest.mark.parametrize("field", ["step", "seed", "time", "mean_return", "std_return", "updates", "returns"])
def test_evaluations_with_wrong_values_are_met_with_a_sentence(
    run: Path, field: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = lines_of(run / "events.jsonl")
    place = next(number for number, line in enumerate(sound) if line["event"] == "eval")
    for value in FEW:
        lines = json.loads(json.dumps(sound))
        lines.insert(place, {**lines[place], field: value})
        write_lines(run / "events.jsonl", lines)
        assert_answered(run, capsys, SHOW, EVAL)
    plots = {"mean_return": PLOT, "std_return": PLOT, "time": [*PLOT, "--x", "time"]}
    for value in ("x", None, 10**400) if field in plots else ():
        lines = json.loads(json.dumps(sound))
        lines.insert(place, {**lines[place], field: value})
        write_lines(run / "events.jsonl", lines)
        assert_answered(run, capsys, plots[field])


@pytest.mark.parametrize("count", [1001, 100_000])
def test_a_run_that_claims_endless_seeds_is_skipped_at_once(
    run: Path, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(run / "events.jsonl")
    lines[0]["config"]["seeds"] = list(range(count))
    write_lines(run / "events.jsonl", lines)
    (run / "journal.jsonl").unlink()
    toml = to_toml(Config())
    (run / "config.toml").write_text(toml.replace("seeds = [0]", f"seeds = {list(range(count))}"))
    begun = time.perf_counter()
    entries, skipped = read_summaries(run.parent)
    assert time.perf_counter() - begun < 10
    assert [entry.path.name for entry in entries] == ["good"]
    assert f"{count:,} seeds" in skipped[0].reason
    with pytest.raises(UserError, match=f"{count:,} seeds"):
        open_run(run)


@pytest.mark.parametrize("seeds", [(2**62,), (0, 10**60), (10**5000,), (-1,), tuple(range(1001))])
def test_seeds_that_not_everything_can_carry_are_refused(seeds: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match="seeds") as told:
        Config(seeds=seeds)
    assert len(str(told.value)) < 200


def test_the_largest_seed_trains_resumes_and_keeps_its_results(tmp_path: Path) -> None:
    seed = 2**62 - 1
    cfg = small_config(
        total_steps=120,
        seeds=[seed],
        eval={"episodes": 1, "max_steps": 3},
        run={"root": str(tmp_path), "name": "large"},
    )
    list(t3d.train(cfg))
    list(t3d.resume(tmp_path / "large", total_steps=150))
    assert list(open_run(tmp_path / "large").evals) == [Member(seed)]
    assert read_summary(tmp_path / "large").best_return is not None
    assert t3d.load_policy(tmp_path / "large" / "best" / f"seed-{seed}").about["seed"] == seed
