"""The history of evaluations in a terminal: every evaluation stays to be read, whatever the size of the window."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from t3d.app.console import View, live_table
from t3d.app.history import EvalRow, HistoryLines, earlier_rows
from t3d.app.terminal import PlainConsole, SignalRequests
from t3d.config import Config
from t3d.events import BadValueFound, Eval, Event, Note, Saved, SaveFailed, SeedStopped, Start, to_line
from terminals import COMMAND, in_terminal, lines_of

SIZES = [(40, 10), (60, 20), (80, 24), (120, 40)]
GRID = ("td3.gamma=0.98,0.99,0.995", "td3.tau=0.01,0.005,0.002", "td3.critic_lr=0.001,0.0003")


def evaluation(cfg: Config, place: int, step: int, mean_return: float) -> Eval:
    figures: dict[str, Any] = {"std_return": 5.0, "min_return": 0.0, "max_return": 0.0, "mean_length": 1.0}
    about: dict[str, Any] = {"returns": [], "lengths": [], "best": False, "time": 100 + step / 250}
    seed = cfg.members[place].seed
    return Eval(step=step, member=place, seed=seed, updates=step, mean_return=mean_return, **figures, **about)


def rounds(cfg: Config, returns: Callable[[int, int], float], count: int) -> list[Eval]:
    """Evaluations of all members at steps 0, 1000, ..."""
    return [
        evaluation(cfg, place, 1000 * number, returns(number, place))
        for number in range(count)
        for place in range(len(cfg.members))
    ]


def screen(cfg: Config, events: Sequence[Event], width: int = 80, height: int = 24) -> list[str]:
    """What a terminal holds, with what has scrolled away, after a run of these events."""
    out = io.StringIO()
    console = PlainConsole(file=out, force_terminal=True, width=width, height=height)
    with contextlib.closing(View(console, SignalRequests())) as view:
        about: dict[str, Any] = {"versions": {"torch": "2"}, "pid": 1, "parameters": 1, "replay_bytes": 1}
        view.show(Start(step=0, folder="nowhere", config=dataclasses.asdict(cfg), time=100.0, **about))
        for event in events:
            view.show(event)
    return lines_of(re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()))


def rows_of(lines: list[str]) -> list[list[str]]:
    """The lines of the history, in words."""
    return [line.split() for line in lines if re.match(r" +[\d,]+ +[-+±\d]", line)]


def test_each_evaluation_leaves_a_line_with_mean_change_seeds_and_speed() -> None:
    cfg = Config(seeds=(3, 5))
    lines = screen(cfg, rounds(cfg, lambda number, place: [[10.0, 20.0], [40.0, 30.0], [20.0, 35.0]][number][place], 3))
    title = lines.index("Mean return in each evaluation (* best so far)")
    assert lines[title + 1].split() == ["step", "mean", "change", "seed", "3", "seed", "5", "steps/s"]
    assert [line.split() for line in lines[title + 2 : title + 5]] == [
        ["0", "15.0", "-", "10.0", "20.0", "-"],
        ["1,000", "35.0*", "+20.0", "40.0*", "30.0*", "250"],
        ["2,000", "27.5", "-7.50", "20.0", "35.0*", "250"],
    ]


def test_one_seed_has_the_deviation_of_its_episodes() -> None:
    cfg = Config(seeds=(0,))
    lines = screen(cfg, rounds(cfg, lambda number, _: -200.0 + 10 * number, 2))
    assert ["step", "return", "±", "std", "change", "steps/s"] in [line.split() for line in lines]
    assert rows_of(lines)[:2] == [
        ["0", "-200.0", "±", "5.00", "-", "-"],
        ["1,000", "-190.0*", "±", "5.00", "+10.0", "250"],
    ]


def test_seeds_that_do_not_fit_are_told_by_their_spread() -> None:
    cfg = Config(seeds=tuple(range(20)))
    lines = screen(cfg, rounds(cfg, lambda _, place: float(place), 1))
    spread = f"{statistics.stdev(range(20)):#.3g}"
    assert ["step", "mean", "change", "±", "std", "lowest", "highest", "steps/s"] in [line.split() for line in lines]
    assert rows_of(lines)[0] == ["0", "9.50", "-", "±", spread, "0.00", "19.0", "-"]
    assert "15 more seeds" in "\n".join(lines), "the live table leaves half of the screen to the history"


def test_a_sweep_has_a_column_for_each_combination_or_names_the_highest() -> None:
    one = Config(seeds=(0, 1), sweep=("td3.gamma=0.98,0.99",))
    lines = screen(one, rounds(one, lambda number, place: float(10 * number + place), 2))
    assert "Mean return in each evaluation by gamma, mean over 2 seeds (* best so far)" in lines
    assert rows_of(lines)[:2] == [["0", "0.500", "2.50", "-"], ["1,000", "10.5*", "12.5*", "250"]]
    grid = Config(seeds=(0,), sweep=GRID)
    lines = screen(grid, rounds(grid, lambda _, place: float(place == 4), 1))
    assert rows_of(lines)[0] == ["0", "0.00", "1.00", "0.98,", "0.002,", "0.001", "-"]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "cfg", [Config(), Config(seeds=tuple(range(30))), Config(seeds=(0, 1), sweep=GRID)], ids=["one", "seeds", "sweep"]
)
def test_no_line_of_the_history_is_cut_or_folded(cfg: Config, size: tuple[int, int]) -> None:
    lines = HistoryLines(cfg.members, size[0])
    for event in rounds(cfg, lambda number, place: -99_999.94 + number + place, 3):
        lines.arriving[event.step]["", event.member] = event
    rows = lines.take(())
    assert len(rows) == 3
    for text in [lines.head, *(lines.line(row).plain for row in rows)]:
        assert len(text) == len(lines.head) <= size[0]
    made = live_table(cfg.members, [{"eval": -99_999.94}] * len(cfg.members), (), 5, "", size[0])
    out = io.StringIO()
    PlainConsole(file=out, width=size[0], height=size[1]).print(made)
    table = out.getvalue().split("─\n")[1].splitlines()
    assert all("…" not in line and "-1e+05" in line for line in table[:1])


@pytest.mark.parametrize(("width", "shown"), [(80, ["success", "energy"]), (70, ["success"]), (40, [])])
def test_what_episodes_say_has_columns_where_there_is_room(width: int, shown: list[str]) -> None:
    cfg = Config(seeds=(0,))
    first, second = rounds(cfg, lambda number, _: float(number), 2)
    said = [
        dataclasses.replace(first, metrics={"success": 0.25, "energy": 3.0}),
        dataclasses.replace(second, metrics={}),
    ]
    lines = HistoryLines(cfg.members, width)
    out = io.StringIO()
    lines.print([EvalRow(event.step, {0: event}) for event in said], PlainConsole(file=out, width=width))
    _, head, *rows = out.getvalue().splitlines()
    assert head.split()[-len(shown) :] == shown if shown else "success" not in head
    cells = [re.split(r"\s{2,}", row.strip())[-len(shown) :] for row in rows] if shown else [[], []]
    assert cells == [["25 %", "3.00"][: len(shown)], ["-", "-"][: len(shown)]]
    assert all(len(line) <= width for line in (head, *rows))


def test_news_stays_where_it_happened() -> None:
    cfg = Config(seeds=(0, 1))
    first, second = rounds(cfg, lambda number, place: float(number), 1), rounds(cfg, lambda number, _: 1.0, 2)[2:]
    bad: dict[str, Any] = {"env": 0, "episode": 1, "episode_step": 2, "field": "reward", "handling": "skip", "count": 1}
    news: list[Event] = [
        Note(step=1, text="the [bold]left\x1b[31m wheel"),
        BadValueFound(step=1, member=0, seed=0, text="a NaN", **bad),
        Saved(step=1, checkpoint="000001", reason="asked", new_bytes=1, save_seconds=1.0),
        SaveFailed(step=1, text="no space", failures=1),
    ]
    lines = screen(cfg, [*first, *news, *second])
    lines = lines[lines.index("Mean return in each evaluation (* best so far)") :]
    marks = [
        "       0 ",
        "note: the [bold]left\\x1b[31m wheel",
        "bad value no. 1",
        "saved at step 1:",
        "not saved: no space",
    ]
    found = [index for mark in [*marks, "   1,000 "] for index, line in enumerate(lines) if mark in line]
    assert len(found) == 6 and found == sorted(found)


def test_a_line_waits_for_all_members_that_are_still_trained() -> None:
    cfg = Config(seeds=(0, 1, 2))
    lines, everyone, living = HistoryLines(cfg.members, 80), {0, 1, 2}, {0, 2}
    for place, mean_return in ((0, 1.0), (2, 3.0)):
        lines.arriving[0]["", place] = evaluation(cfg, place, 0, mean_return)
        assert lines.take(everyone) == []
    (row,) = lines.take(living)  # member 1 has diverged
    assert row.mean([0, 1, 2]) == 2.0 and row.mean([1]) is None and lines.take(living) == []
    lines.arriving[1000]["", 0] = evaluation(cfg, 0, 1000, 1.0)
    assert lines.take(living) == []
    (late,) = lines.take(())  # the run ends before the others were evaluated
    assert late.step == 1000 and late.mean([0]) == 1.0 and late.mean([2]) is None


def test_a_seed_that_diverges_leaves_the_mean() -> None:
    cfg = Config(seeds=(0, 1))
    events: list[Event] = [*rounds(cfg, lambda number, place: float(place), 1), evaluation(cfg, 0, 1000, 4.0)]
    lines = screen(cfg, [*events, SeedStopped(step=1000, member=1, seed=1, text="not finite")])
    assert rows_of(lines)[1] == ["1,000", "4.00*", "+3.50", "4.00*", "-", "250"]


def test_the_names_of_the_columns_are_never_far_above() -> None:
    cfg = Config(seeds=(0,))
    lines = screen(cfg, rounds(cfg, lambda number, _: float(number), 50))
    heads = [index for index, line in enumerate(lines) if line.split()[:2] == ["step", "return"]]
    last = max(index for index, line in enumerate(lines) if line.startswith("    49,000"))
    assert all(after - before <= 13 for before, after in zip(heads, [*heads[1:], last], strict=True))


@pytest.mark.slow  # on a busy machine it has once not found the second line
def test_a_terminal_keeps_every_evaluation_and_a_resumed_one_those_before(tmp_path: Path) -> None:
    code, lines = in_terminal([*COMMAND, "--run.name", "told", "--seeds", "0", "1"], tmp_path)
    assert code == 0 and [row[0] for row in rows_of(lines)[:3]] == ["0", "100", "200"]
    assert "Trained 200 steps per seed" in "\n".join(lines)
    resume = [sys.executable, "-m", "t3d", "resume", "told", "--total-steps", "300", "--no-video"]
    code, again = in_terminal(resume, tmp_path)
    before = [row[:-1] for row in rows_of(lines)[:3]]
    assert code == 0 and [row[:-1] for row in rows_of(again)[:3]] == before, "read from the folder"
    assert rows_of(again)[3][0] == "300"


def test_evaluations_of_another_run_in_the_folder_are_not_told(tmp_path: Path) -> None:
    """What a file says of members that do not exist is left out."""
    cfg = Config(seeds=(0, 1))
    good, strange = evaluation(cfg, 1, 0, 2.0), dataclasses.replace(evaluation(cfg, 0, 0, 1.0), member=7)
    (tmp_path / "events.jsonl").write_text("\n".join([to_line(good), to_line(strange), "torn", ""]))
    assert earlier_rows(tmp_path, cfg.members) == [EvalRow(0, {1: good})]
    assert earlier_rows(tmp_path / "none", cfg.members) == []
