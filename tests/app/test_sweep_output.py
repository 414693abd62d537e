"""What is told about a sweep: tables that fit into 80 columns, one winner, and pictures that can be read."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.axes
import matplotlib.figure
import numpy as np
import pytest
from rich.console import Console

from fake_runs import stored
from run_folders import plotted
from t3d.app.console import live_table
from t3d.app.runs import show_results
from t3d.app.session import print_results
from t3d.app.tables import print_sweep, sweep_table
from t3d.app.terminal import PlainConsole
from t3d.config import Config, Member, merge
from t3d.events import End, SeedStopped
from t3d.insight.plots import plot_curves
from t3d.store.metrics import StoredEvaluation, highest, last_means
from t3d.store.reader import Run

LONGEST = ("td3.pre_activation_penalty=0.25,1.125", "td3.target_noise_clip=0.25,0.125", "td3.max_grad_norm=0.5,12.25")


def evaluation(step: int, mean_return: float) -> StoredEvaluation:
    return StoredEvaluation(step, 1e9 + step, step, mean_return, std_return=5.0, best=False)


def run_of(
    sweep: tuple[str, ...], seeds: Sequence[int], returns: Callable[[int], Sequence[float]], lost: Sequence[int] = ()
) -> Run:
    """A sweep in which the member at each place has these returns, the first of them untrained."""
    cfg = Config(seeds=tuple(seeds), sweep=sweep)
    evals = {
        member: [evaluation(1000 * step, value) for step, value in enumerate(returns(place))]
        for place, member in enumerate(cfg.members)
    }
    stopped = {cfg.members[place]: SeedStopped(step=1, member=place, text="not finite") for place in lost}
    return Run(Path("nowhere"), cfg, evals, stopped)


def three_values(*returns: Sequence[float], lost: Sequence[int] = ()) -> Run:
    return run_of(("td3.gamma=0.9,0.97,0.99",), (0, 1), lambda place: returns[place], lost)


def cells(run: Run) -> list[list[Any]]:
    return [list(column.cells) for column in sweep_table(run.cfg.members, run.evals, run.stopped).columns]


def marks(run: Run) -> list[Any]:
    return cells(run)[-1]


def test_the_table_has_the_mean_and_deviation_over_seeds_of_each_value() -> None:
    run = three_values([900, 500, 300], [1, 300, 100], [1, 250, 250], [1, 310, 310], [1, 900, 900], [1, 2, 2], lost=[4])
    assert cells(run) == [
        ["0.9", "0.97", "0.99"],
        ["400.0 ± 141.4", "280.0 ± 42.4", "2.00"],
        ["200.0 ± 141.4", "280.0 ± 42.4", "2.00"],
        ["", "highest", "1 diverged"],
    ], "the best policy is a trained one"


def test_the_mark_is_given_only_where_it_means_something() -> None:
    low, high = [1, 10], [1, 20]
    assert marks(three_values(low, low, high, high, low, low)) == ["", "highest", ""]
    assert marks(three_values(low, high, high, low, low, low)) == ["", "", ""], "a tie"
    assert marks(three_values([5], [5], [6], [6], [7], [7])) == ["", "", ""], "before the first update"
    assert marks(three_values(low, low, high, [1, 90], low, [1, 11], lost=[2])) == ["", "1 diverged", "highest"]
    assert marks(three_values(low, low, high, high, low, low, lost=[0, 2, 4])) == ["1 diverged"] * 3


@pytest.mark.parametrize(("sweep", "has_best"), [(LONGEST, False), (LONGEST[1:], True), (("td3.tau=0.1,0.2",), True)])
def test_the_table_fits_into_80_columns_with_every_digit(sweep: tuple[str, ...], has_best: bool) -> None:
    run = run_of(sweep, range(5), lambda place: [0, -12_345.6 - place, -12_345.6 + 1000 * place])
    console = Console(width=80, record=True, file=io.StringIO())
    print_sweep(run.cfg.members, run.evals, run.stopped, console)
    out = console.export_text()
    title, *rows = out.strip().splitlines()
    names = ", ".join(word.partition("=")[0] for word in sweep)
    assert title == f"Return by {names}: mean over 5 seeds, ± std over seeds"
    assert "…" not in out and max(len(row.rstrip()) for row in rows) <= 80
    shown = cells(run)
    assert ("best" in rows[0].split() or "best" in out.split()) == has_best
    for row in zip(*(shown if has_best else [*shown[:-3], *shown[-2:]]), strict=True):
        assert any(line.split() == " ".join(row).split() for line in rows), row


def test_while_it_trains_a_row_is_a_combination_and_the_mean_of_its_seeds() -> None:
    members = Config(seeds=(0, 1, 2), sweep=LONGEST).members
    newest = [{"eval": -1000.5 - place, "q_mean": 2.0 * place} for place in range(len(members))]
    console = Console(width=80, height=50, record=True, file=io.StringIO())
    console.print(live_table(members, newest, {1, 3, 4, 5}, room=7, caption="speed"))
    out = console.export_text()
    rows = [re.split(r"  +", line.strip()) for line in out.splitlines() if "0." in line]
    assert rows[0] == ["0.25, 0.25, 0.5", "-1,002", "-", "-", "2"], "of seeds 0 and 2"
    assert rows[1][:2] == ["0.25, 0.25, 12.25", "diverged"] and len(rows) == 7 and "1 more combination" in out
    assert all(name in out for name in ("pre_activation_penalty", "target_noise_clip", "max_grad_norm"))
    assert "…" not in out and max(map(len, out.splitlines())) <= 80


def test_without_a_sweep_a_row_is_a_seed() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(live_table(Config(seeds=(3, 5)).members, [{"eval": 1.0}, {"episode": 2.5}], (), 9, ""))
    out = [line.split() for line in console.export_text().splitlines()]
    assert ["3", "1", "-", "-", "-", "-", "-"] in out and ["5", "-", "-", "2.5", "-", "-", "-"] in out


def test_the_best_is_chosen_among_the_seeds_of_the_marked_value() -> None:
    run = three_values([1, 99, 10], [1, 10, 10], [1, 20, 20], [1, 30, 20], [1, 19, 19], [1, 19, 19])
    assert run.contenders == list(run.cfg.members[2:4]) and run.best_member() == run.cfg.members[3]
    lost = run._replace(stopped={run.cfg.members[3]: SeedStopped(step=1, text="")})
    assert lost.contenders == list(run.cfg.members[4:]), "the next best"
    tied = three_values([1, 5], [1, 5], [1, 5], [1, 5], [1, 4], [1, 4], lost=[5])
    assert tied.contenders == list(tied.cfg.members[:5]), "all that have not diverged"
    plain = Run(Path("nowhere"), Config(seeds=(0, 1)), {Member(0): [evaluation(1, 1.0)]})
    assert plain._replace(stopped={Member(0): SeedStopped(step=1, text="")}).contenders == [Member(0)]


def test_what_is_highest_is_the_mean_over_seeds_of_last_evaluations() -> None:
    run = three_values([1, 10, 4], [1, 10, 6], [1, 9, 7], [1, 9, 9], [1, 30, 30], [1], lost=[])
    first, second, _ = means_of = [(("td3.gamma", value),) for value in (0.9, 0.97, 0.99)]
    means = last_means(run.cfg.members, run.evals, [])
    assert means == {first: 5, second: 8} and highest(means) == second and means_of[2] not in means


@pytest.mark.parametrize("noise", ["gaussian", "pink"])
def test_members_that_training_made_worse_are_counted(noise: str, capsys: pytest.CaptureFixture[str]) -> None:
    end = End(step=2000, reason="finished", updates=2000, seconds=1.0)
    run = three_values(*[[50, 10, 20]] * 4, [50, 60, 70], [50])
    print_results(run._replace(cfg=merge(run.cfg, {"noise": {"kind": noise}})), end, PlainConsole())
    out = capsys.readouterr().out
    assert "4 of 6 members were never better than before training. See " in out
    assert ("--noise.kind pink" in out) == (noise == "gaussian")
    print_results(three_values(*[[50, 60]] * 6), end, PlainConsole())
    assert "never better" not in capsys.readouterr().out


@pytest.fixture
def legends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str | None]]:
    """Fills with where each legend is and its title."""
    found: list[tuple[str, str | None]] = []
    for place in (matplotlib.axes.Axes, matplotlib.figure.Figure):

        def noted(self: Any, *arguments: Any, legend: Any = place.legend, **keywords: Any) -> Any:
            found.append((str(keywords["loc"]), keywords["title"]))
            return legend(self, *arguments, **keywords)

        monkeypatch.setattr(place, "legend", noted)
    return found


@pytest.fixture
def bands(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Fills with the bands that are drawn."""
    found: list[Any] = []
    monkeypatch.setattr(matplotlib.axes.Axes, "fill_between", lambda _, x, *__, **___: found.append(x))
    return found


def plot(out: Path, *runs: Run, **how: Any) -> None:
    plot_curves([stored(run, out.parent / run.path.name) for run in runs], out, **how)


def labels(drawn: list[tuple[str | None, list[float]]]) -> list[str]:
    return [label for label, _ in drawn if label]


def test_a_few_values_have_lines_bands_and_a_legend_inside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legends: list[Any], bands: list[Any]
) -> None:
    run, drawn = three_values(*[[place, 10 * place] for place in range(6)]), plotted(monkeypatch)
    plot(tmp_path / "sweep.png", run)
    means = {"gamma=0.9 (2 seeds)": [0.5, 5], "gamma=0.97 (2 seeds)": [2.5, 25], "gamma=0.99 (2 seeds)": [4.5, 45]}
    assert drawn == [*means.items()]
    assert legends == [("best", "mean over seeds, ± std")] and len(bands) == 3
    plot(tmp_path / "one.png", run, seed="gamma-0.97-seed-1")
    assert drawn[3][0] == "td3.gamma=0.97, seed 1, ± std of its episodes" and legends[1][1] is None


def test_what_a_line_is_the_mean_of_is_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legends: list[Any], bands: list[Any]
) -> None:
    drawn = plotted(monkeypatch)
    plot(tmp_path / "lost.png", three_values(*[[1, 2]] * 6, lost=[0, 4, 5]))
    lines = ["gamma=0.9 (1 of 2 seeds)", "gamma=0.9: seed 0 diverged", "gamma=0.97 (2 seeds)"]
    assert labels(drawn) == [*lines, "gamma=0.99: seeds 0, 1 diverged"] and len(bands) == 1, "one seed has no band"
    drawn.clear()
    bands.clear()
    single = run_of(("td3.tau=0.1,0.2",), (0,), lambda place: [1, place])
    plot(tmp_path / "single.png", single)
    assert labels(drawn) == ["tau=0.1 (1 seed)", "tau=0.2 (1 seed)"] and not bands
    drawn.clear()
    plot(tmp_path / "both.png", single, three_values(*[[1, 2]] * 6)._replace(path=Path("other")))
    assert labels(drawn)[1:3] == ["nowhere: tau=0.2 (1 seed)", "other: gamma=0.9 (2 seeds)"]


@pytest.mark.filterwarnings("error")
def test_many_lines_have_their_legend_beside_the_axes_and_no_bands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, legends: list[Any], bands: list[Any]
) -> None:
    drawn = plotted(monkeypatch)
    run = run_of(LONGEST, (0, 1), lambda place: [1, place])
    plot(tmp_path / "grid.png", run)
    names = "pre_activation_penalty, target_noise_clip, max_grad_norm"
    assert legends == [("outside right upper", f"{names}\nmean over seeds")] and not bands
    assert labels(drawn)[0] == "0.25, 0.25, 0.5 (2 seeds)" and len(labels(drawn)) == 8


@pytest.mark.filterwarnings("error")
def test_of_very_many_combinations_the_best_twelve_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, titles = plotted(monkeypatch), list[str]()
    monkeypatch.setattr(matplotlib.axes.Axes, "set_title", lambda _, text: titles.append(text))
    values = ",".join(str(one / 100) for one in range(30))
    run = run_of((f"td3.tau={values}",), (0, 1), lambda place: [0, place, -1 if place < 4 else 60 - place])
    plot(tmp_path / "many.png", run)
    assert labels(drawn) == [f"tau={one / 100} (2 seeds)" for one in range(2, 14)]
    assert titles[0].endswith("the 12 of 30 combinations with the highest means of last evaluations")


def test_no_warning_of_matplotlib_reaches_the_user(tmp_path: Path) -> None:
    run = three_values(*[[1, 2]] * 6)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        plot(tmp_path / "letters.png", run._replace(cfg=merge(run.cfg, {"env": {"name": "环境"}})))
    assert not told and np.all((tmp_path / "letters.png").stat().st_size > 10_000)


@pytest.mark.parametrize("sweep", [LONGEST, ("td3.tau=0.1,0.2",)])
def test_runs_show_folds_names_and_drops_columns_only_if_it_must(sweep: tuple[str, ...]) -> None:
    run = run_of(sweep, (0, 1), lambda place: [0, -12_345.6 - place, -12_345.6 + 1000 * place])
    console = Console(width=80, record=True, file=io.StringIO())
    entry: Any = SimpleNamespace(members=run.cfg.members, path=run.path, fresh=None, config={})
    show_results(entry, run.evals, set(), console)
    _, _, table = console.export_text().partition("Mean return in evaluation")
    narrow = sweep == LONGEST
    assert ("before" in table) == ("at step" in table) == (not narrow) and "…" not in table
    first_column = "".join(line.split("  ")[0].strip() for line in table.splitlines()[3:])
    assert first_column == "".join(member.name for member in run.cfg.members)
