"""`t3d runs`: every kind of run folder is listed for what it is, and nothing in a folder can break the list."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import t3d
from fake_runs import kept
from helpers import CountingEnv, small_config
from run_folders import events_of, known_event
from t3d.app.cli import main
from t3d.config import Config
from t3d.errors import EnvironmentFailed
from t3d.events import ActorEvent, Alarm, End, Eval, Event, Note, SeedStopped, Start, to_line
from t3d.insight.wording import duration_text, number_text, seeds_text, size_text, source_of, steps_text
from t3d.store.log import Unreadable, read_log
from t3d.store.metrics import best_of
from t3d.store.reader import open_run
from t3d.store.summary import Stored, Summary, changes, contents, read_summaries, read_summary


class BreakingEnv(CountingEnv):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.episode == 30:
            raise RuntimeError("the [bold]left[/bold] wheel fell off\nand the right one too")
        return super().step(action)


def config(root: Path, name: str, **changes: Any) -> Config:
    return small_config(run={"root": str(root), "name": name}, **changes)


def train(cfg: Config, **options: Any) -> list[Event]:
    return list(t3d.train(cfg, **options))


def rewrite(path: Path, start: dict[str, Any], keep: slice = slice(1, None)) -> None:
    """Changes a run's start event and keeps some of its other lines."""
    lines = (path / "events.jsonl").read_text().splitlines()
    first = dataclasses.replace(known_event(lines[0]), **start)
    (path / "events.jsonl").write_text("\n".join([to_line(first), *lines[keep]]) + "\n")
    (path / "journal.jsonl").write_text(to_line(first) + "\n")


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of every status but running."""
    root = tmp_path_factory.mktemp("runs")
    train(config(root, "whole", seeds=[0, 3], preset="quick"))
    for event in t3d.train(config(root, "Halted", total_steps=400)):
        if event.step >= 200:
            break
    with pytest.raises(EnvironmentFailed):
        train(config(root, "broken"), make_env=BreakingEnv)
    shutil.copytree(root / "whole", root / "killed")
    rewrite(root / "killed", {"pid": dead_pid()}, keep=slice(1, -1))
    return root


def listed(root: Path) -> dict[str, Summary]:
    entries, skipped = read_summaries(root)
    assert skipped == []
    return {entry.path.name: entry for entry in entries}


def printed(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert main(["runs", *command]) == 0
    return capsys.readouterr().out


def names(out: str) -> list[str]:
    """The first column of the list, without heading and footer."""
    return [line.split()[0] for line in out.splitlines()[2:-1]]


def test_every_ending_has_its_status(root: Path) -> None:
    found = listed(root)
    statuses = {name: entry.status for name, entry in found.items()}
    assert statuses == {"whole": "finished", "Halted": "stopped", "broken": "failed", "killed": "died"}
    assert {name for name, entry in found.items() if entry.failure} == {"broken"}
    assert "wheel fell off" in found["broken"].failure


def test_a_run_that_is_still_training_is_running(tmp_path: Path) -> None:
    stop = threading.Event()
    events = t3d.train(config(tmp_path, "live"), stop=stop)
    start = next(events)
    entry = listed(tmp_path)["live"]
    assert (entry.status, entry.step, entry.best_return) == ("running", 0, None)
    assert entry.took.total_seconds() == pytest.approx(time.time() - start.time, abs=1)
    while next(events).step < 200:
        pass
    assert listed(tmp_path)["live"].status == "running" and listed(tmp_path)["live"].step >= 200
    stop.set()
    list(events)
    assert listed(tmp_path)["live"].status == "stopped"


def test_a_process_that_only_has_the_same_number_does_not_keep_a_run_alive(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "whole", tmp_path / "old")
    born = psutil.Process().create_time()
    rewrite(tmp_path / "old", {"pid": os.getpid(), "time": born + 1}, keep=slice(1, -1))
    assert listed(tmp_path)["old"].status == "running"
    rewrite(tmp_path / "old", {"pid": os.getpid(), "time": born - 3600})
    assert listed(tmp_path)["old"].status == "died"


def test_a_process_that_nobody_has_buried_is_dead(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "killed", tmp_path / "zombie")
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.read()
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    rewrite(tmp_path / "zombie", {"pid": process.pid, "time": time.time()})
    assert listed(tmp_path)["zombie"].status == "died"
    process.wait()


def test_a_process_that_ends_while_it_is_looked_at_is_dead(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: True)
    assert listed(root)["killed"].status == "died"


def test_the_list_agrees_with_the_whole_events(root: Path) -> None:
    for name, entry in listed(root).items():
        run = open_run(root / name)
        start, *_, last = events_of(root / name)
        assert isinstance(start, Start)
        best = [best_of(evals).mean_return for evals in run.evals.values()]
        assert entry.best_return == pytest.approx(sum(best) / len(best))
        assert (entry.env, entry.seeds, entry.preset) == (run.cfg.env.id, run.cfg.seeds, run.cfg.preset)
        assert (entry.step, entry.total_steps) == (last.step, run.cfg.total_steps)
        assert entry.started.timestamp() == pytest.approx(start.time)
        took = last.seconds if isinstance(last, End) else last.time - start.time
        assert entry.took.total_seconds() == pytest.approx(took, abs=1e-5)
        evals = [event for event in read_log(root / name)[0] if isinstance(event, Eval)]
        for number, member in enumerate(run.cfg.members):
            assert run.evals[member] == [kept(event) for event in evals if event.member == number]


@pytest.mark.parametrize("note", [None, "{", '{"mean_return": null}', "[1]"])
def test_without_notes_beside_the_policies_the_evaluations_are_read(
    root: Path, tmp_path: Path, note: str | None
) -> None:
    shutil.copytree(root / "whole", tmp_path / "copy")
    file = tmp_path / "copy" / "best" / "seed-3.json"
    file.unlink()
    if note is not None:
        file.write_text(note)
    assert listed(tmp_path)["copy"].best_return == pytest.approx(listed(root)["whole"].best_return)


def test_the_printed_list_says_it_all(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "--root", str(root))
    assert out.splitlines()[0].split() == [
        *("name", "environment", "preset", "seeds", "steps", "return", "best", "eval", "status", "started", "took")
    ]
    row = next(line for line in out.splitlines() if line.startswith("whole"))
    entry = listed(root)["whole"]
    best = f"{entry.best_return:,.1f}"
    assert row.split()[:8] == ["whole", "Pendulum-v1", "quick", "0,", "3", "300/300", "-", best], "none were played"
    assert row.split()[8:] == ["finished", *f"{entry.started:%d %b %H:%M}".split(), duration_text(entry.took)]
    assert "4 runs in" in out and "skipped" not in out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("HALT", {"Halted"}),
        ("quick", {"whole", "killed"}),
        ("quick died", {"killed"}),
        ("pendulum", {"whole", "killed", "Halted", "broken"}),
        ("failed", {"broken"}),
    ],
)
def test_search_looks_at_names_environments_presets_and_statuses(
    root: Path, words: str, expected: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "--root", str(root), "--search", words)
    assert set(names(out)) == expected
    assert f"{len(expected)} of 4 runs" in out or len(expected) == 4


def test_a_search_without_a_find_says_so(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "None of the 4 runs" in printed(capsys, "--root", str(root), "--search", "[ant]")


def test_sorting(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    returns = {"b": -5.0, "a": 30.0, "C": None, "d": 4.0}
    for hour, (name, value) in enumerate(returns.items()):
        shutil.copytree(root / "whole", tmp_path / name)
        end = End(step=[7, 300, 20, 100][hour], reason="stopped", updates=0, seconds=1.0)
        rewrite(tmp_path / name, {"time": 1.7e9 + 3600 * hour}, keep=slice(0, 0))
        with (tmp_path / name / "events.jsonl").open("a") as file:
            file.write(to_line(end) + "\n")
        for seed in (0, 3):
            (tmp_path / name / "best" / f"seed-{seed}.json").write_text(json.dumps({"mean_return": value}))
    orders = {"time": "dCab", "name": "abCd", "return": "adbC", "steps": "adCb"}
    for sort, order in orders.items():
        assert "".join(names(printed(capsys, "--root", str(tmp_path), "--sort", sort))) == order
    assert names(printed(capsys, "--root", str(tmp_path))) == list("dCab"), "the newest first if nothing is said"


@pytest.fixture
def odd(root: Path, tmp_path: Path) -> Path:
    """A good run among folders that are none."""
    start = json.loads((root / "whole" / "events.jsonl").read_text().splitlines()[0])
    lines: dict[str, bytes] = {
        "empty-file": b"",
        "half-a-line": json.dumps(start).encode()[:300],
        "binary": bytes(range(256)) * 40,
        "deep": b"[" * 200_000,
        "another-log": b'{"loss": 1}\n' * 5,
        "no-config": json.dumps({**start, "config": None}).encode() + b"\n",
        "old-config": json.dumps({**start, "config": {"seeds": [0]}}).encode() + b"\n",
        "bad-seeds": json.dumps({**start, "config": {**start["config"], "seeds": "xy"}}).encode() + b"\n",
        "bad-time": json.dumps({**start, "time": 1e300}).encode() + b"\n",
        "bad-pid": json.dumps({**start, "pid": 10**30}).encode() + b"\n",
        "late": b'{"event": "end", "step": 3, "time": 1.0, "reason": "finished", "seconds": 1}\n',
        "bad[red]\x1b[31m\n\udcff": b"",
    }
    for name, content in lines.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "events.jsonl").write_bytes(content)
    (tmp_path / "nothing").mkdir()
    (tmp_path / "a-folder" / "events.jsonl").mkdir(parents=True)
    (tmp_path / "a-pipe").mkdir()
    os.mkfifo(tmp_path / "a-pipe" / "events.jsonl")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "curves.png").write_bytes(b"a file is not a run")
    shutil.copytree(root / "whole", tmp_path / "good")
    return tmp_path


def test_odd_folders_are_named_in_one_line_each_and_the_rest_is_listed(
    odd: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = printed(capsys, "--root", str(odd))
    assert next(line for line in out.splitlines() if line.startswith("good")).split()[8] == "finished"
    skipped = [line for line in out.splitlines() if line.startswith("skipped ")]
    links = 2
    folders = [path for path in odd.iterdir() if path.name not in ("good", "curves.png")]
    assert len(skipped) == len(folders) - links
    assert "skipped nothing: it has no events.jsonl" in skipped
    assert "skipped empty-file: its events.jsonl does not begin with a complete start event" in skipped
    assert any(line.startswith("skipped half-a-line: its events.jsonl does not begin") for line in skipped)
    assert any(line.startswith("skipped bad[red]?[31m??: ") for line in skipped)
    assert "\x1b" not in out


def test_showing_an_odd_folder_is_one_sentence(odd: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("nothing", "empty-file", "half-a-line", "deep", "bad-time", "a-pipe"):
        assert main(["runs", "show", str(odd / name)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {odd / name} cannot be read as a run: ") and error.count("\n") == 1


@pytest.mark.parametrize(
    "tail",
    [b'{"event": "end", "st', b"\x00" * 50_000, b"\xff\xfe", b"[" * 50_000, b"\n\n\n", b'{"event": "note"}\n', b"7\n"],
)
def test_a_torn_end_leaves_the_last_whole_event(root: Path, tmp_path: Path, tail: bytes) -> None:
    shutil.copytree(root / "killed", tmp_path / "torn")
    with (tmp_path / "torn" / "events.jsonl").open("ab") as file:
        file.write(tail)
    before, torn = listed(root)["killed"], listed(tmp_path)["torn"]
    assert torn._replace(path=before.path) == before


def test_a_last_line_longer_than_the_first_look(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "killed", tmp_path / "long")
    with (tmp_path / "long" / "events.jsonl").open("a") as file:
        file.write(json.dumps({"event": "eval", "step": 301, "time": 2e9, "returns": [0.125] * 100_000}) + "\n")
    assert listed(tmp_path)["long"].step == 301


def test_evaluations_that_are_torn_or_not_numbers_are_passed_over(root: Path, tmp_path: Path) -> None:
    shutil.copytree(root / "killed", tmp_path / "torn")
    kinds = (Eval, Note, ActorEvent)
    sound, _ = read_log(root / "killed", kinds)
    evaluation = next(event for event in sound if isinstance(event, Eval))
    wrong = to_line(dataclasses.replace(evaluation, mean_return=math.nan)) + "\n"
    with (tmp_path / "torn" / "events.jsonl").open("a") as file:
        file.write(wrong)
        file.write('{"event": "eval", "step": 1, "se')
    assert read_log(tmp_path / "torn", kinds) == (sound, 1), "half a line is not counted"


def test_hundreds_of_big_runs_are_listed_at_once(root: Path, tmp_path: Path) -> None:
    lines = (root / "whole" / "events.jsonl").read_bytes().splitlines(keepends=True)
    middle = b"".join(lines[1:-1])
    big = tmp_path / "big.jsonl"
    big.write_bytes(lines[0] + middle * (50_000_000 // len(middle)) + lines[-1])
    runs = tmp_path / "runs"
    for number in range(200):
        (runs / f"run-{number}").mkdir(parents=True)
        (runs / f"run-{number}" / "events.jsonl").hardlink_to(big)
        (runs / f"run-{number}" / "best").symlink_to(root / "whole" / "best")
    begun = time.perf_counter()
    entries = listed(runs)
    seconds = time.perf_counter() - begun
    assert len(entries) == 200 and all(entry.status == "finished" for entry in entries.values())
    assert seconds < 10, "10 GB: reading every line takes 20 s, the two ends of each file 0.1 s"


def test_torch_is_not_imported(root: Path) -> None:
    code = "import sys; from t3d.app.cli import main; assert main(['runs', '--root', sys.argv[1]]) == 0; "
    code += "assert main(['runs', 'show', 'whole', '--root', sys.argv[1]]) == 0; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(root)], check=True, capture_output=True)


def test_show_prints_results_settings_and_files(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "show", "whole", "--root", str(root))
    assert "Pendulum-v1, preset quick, seeds 0, 3" in out
    assert "finished at 300 of 300 steps" in out
    run = open_run(root / "whole")
    for member, evals in run.evals.items():
        best = best_of(evals)
        row = next(line for line in out.splitlines() if line.split()[:1] == [str(member.seed)])
        before, last = number_text(evals[0].mean_return), evals[-1]
        shown = [before, number_text(best.mean_return), "±", number_text(best.std_return), str(best.step)]
        shown += [number_text(last.mean_return), "±", number_text(last.std_return), str(last.step)]
        assert row.split()[1:] == shown
    rows = [line.split() for line in out.splitlines()]
    assert ["td3.batch_size", "256", "16", "flag", "or", "file"] in rows
    assert ["td3.actor_hidden", "256", "256", "16", "16", "flag", "or", "file"] in rows
    assert not any(row[:1] == ["td3.gamma"] for row in rows), "gamma is the default"
    count, size = map(sum, zip(*contents(root / "whole").values(), strict=True))
    assert out.splitlines()[-1] == f"{(root / 'whole').resolve()}: {count:,} files, {size_text(size)}"
    assert main(["runs", "show", str(root / "whole")]) == 0
    assert capsys.readouterr().out == out, "a path does as well as a name"


def test_show_prefers_a_run_to_another_folder_of_that_name(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "whole").mkdir()
    assert "finished at" in printed(capsys, "show", "whole", "--root", str(root))


def test_show_says_why_a_run_failed_or_died(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = printed(capsys, "show", "broken", "--root", str(root))
    assert "failed at" in out and "the [bold]left[/bold] wheel fell off" in out and "and the right one too" in out
    assert "never wrote an end" in printed(capsys, "show", "killed", "--root", str(root))


def test_show_before_the_first_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events = t3d.train(config(tmp_path, "young"))
    next(events)
    out = printed(capsys, "show", "young", "--root", str(tmp_path))
    assert "No evaluation yet." in out and "running at 0 of 300 steps" in out
    assert printed(capsys, "--root", str(tmp_path)).splitlines()[2].split()[5] == "-"


def test_settings_of_another_version_are_shown_too() -> None:
    config = {"total_steps": 5, "seeds": [0], "td3": {"gamma": 0.99, "magic": 3}, "gone": "x"}
    assert changes(config) == {"total_steps": (1_000_000, 5), "td3.magic": (None, 3), "gone": (None, "x")}


def test_contents_add_up(tmp_path: Path) -> None:
    (tmp_path / "deep" / "deeper").mkdir(parents=True)
    for name, size in {"a": 3, "deep/b": 5, "deep/deeper/c": 7}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "broken-link").symlink_to("nowhere")
    assert contents(tmp_path) == {"a": Stored(1, 3), "deep/": Stored(2, 12)}


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["--root", "nowhere"], "cannot list runs in nowhere: No such file or directory; name their folder with"),
        (["--root", "{root}/whole"], "is a run itself; t3d runs show"),
        (["lunar"], "t3d runs show lunar prints one run"),
        (["show", "whale", "--root", "{root}"], "there is no run named whale in {root}, did you mean whole?"),
        (["show", "zzz", "--root", "{root}"], "there is no run named zzz in {root}; t3d runs lists them"),
    ],
)
def test_a_mistake_is_one_sentence(
    root: Path, command: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["runs", *(word.format(root=root) for word in command)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words.format(root=root) in error


def test_an_empty_folder_says_how_to_fill_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No runs in" in printed(capsys, "--root", str(tmp_path))


def test_a_folder_that_may_not_be_read_is_skipped(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(root / "whole", tmp_path / "locked")

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("t3d.files.os.open", refuse)
    entries, skipped = read_summaries(tmp_path)
    assert entries == [] and [(one.path.name, one.reason) for one in skipped] == [("locked", "Permission denied")]
    with pytest.raises(Unreadable, match="Permission denied"):
        read_summary(tmp_path / "locked")


def test_figures_as_people_read_them() -> None:
    assert [steps_text(steps) for steps in (0, 9_999, 142_292, 199_999, 1_000_000, 1_239_999)] == [
        *("0", "9,999", "142.2k", "199.9k", "1M", "1.23M")
    ]
    assert [seeds_text(seeds) for seeds in ((7,), (0, 1), (0, 1, 2), (0, 3, 7), (5, 1, 2, 3, 9))] == [
        *("7", "0, 1", "0-2", "0, 3, 7", "5, 1.. (5)")
    ]
    assert [number_text(value) for value in (None, 0.95312, -62.64, 4391.147)] == ["-", "0.953", "-62.6", "4,391.1"]
    assert [size_text(size) for size in (0, 1023, 1536, 3 * 2**20)] == ["0 B", "1023 B", "1.5 KiB", "3.0 MiB"]


def test_show_repeats_what_the_doctor_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Endless(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *_ = super().step(action)
            return observation, reward, False, False, {}

    cfg = small_config(run={"root": str(tmp_path), "name": "endless"}, eval={"max_steps": 5})
    list(t3d.train(cfg, make_env=Endless))
    assert main(["runs", "show", str(tmp_path / "endless")]) == 0
    assert "note: Endless: no episode ended within" in capsys.readouterr().out


def test_the_source_of_a_setting_is_the_preset_if_its_value_is() -> None:
    assert source_of("td3.gamma", 0.98, "quick") == "preset quick"
    assert source_of("td3.actor_hidden", (64, 64), "quick") == "preset quick"
    assert source_of("td3.gamma", 0.97, "quick") == source_of("td3.gamma", 0.98, "of old") == "flag or file"


def test_show_says_what_diverged_then_alarms_the_gravest_first_then_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(tmp_path, "run"))
    news: list[Event] = [
        Note(step=0, text="X: rewards reach 1e+04 in magnitude; TD3 learns best with rewards of about one"),
        Note(step=0, text="X: another note"),
        Alarm(step=5, kind="large-rewards", text="rewards are very large.", advice="--scale-rewards."),
        Alarm(step=9, member=0, seed=0, kind="saturated-actor", text="it is saturated.", advice="less."),
        SeedStopped(step=90, member=0, seed=0, text="its loss is nan"),
    ]
    lines = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    (tmp_path / "run" / "events.jsonl").write_text("\n".join([*lines, *map(to_line, news)]) + "\n")
    said = printed(capsys, "show", "run", "--root", str(tmp_path))
    words = ("diverged at step 90", "is saturated", "are very large", "rewards reach", "another note")
    order = [said.index(part) for part in words]
    assert order == sorted(order)
