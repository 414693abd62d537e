"""What the server says of runs is what their folders say."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from dash_client import BEARER, client_of
from fake_runs import diagnosis, evaluation, update, write_long_run, write_run
from helpers import small_config
from run_folders import folder_of, run
from t3d.dash import library
from t3d.dash.answers import listed_fields
from t3d.dash.library import Library
from t3d.events import Alarm, Note, Update, to_line
from t3d.insight.fifteen_steps import fifteen_texts
from t3d.store.metrics import Metric
from t3d.store.summary import read_summary
from t3d.types import UpdateTrace


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of two seeds, with its folder of runs."""
    root = tmp_path_factory.mktemp("runs")
    return folder_of(run(small_config(seeds=[0, 1], run={"name": "real"}), root))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "apple", {0: [1.0, 9.0]}, env="Pendulum-v1")
    write_run(tmp_path / "pear", {0: [2.0, 3.0], 1: [4.0, 5.0]}, env="HalfCheetah-v5", td3={"gamma": 0.9})
    (tmp_path / "notes").mkdir()
    return tmp_path


def got(client: TestClient, address: str) -> Any:
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(client: TestClient, query: str = "") -> list[str]:
    return [one["name"] for one in got(client, f"/api/runs?{query}")["runs"]]


def test_the_list_says_what_t3d_runs_says(trained: Path) -> None:
    found = got(client_of(trained.parent), "/api/runs")
    more = {"tags": [], "note": "", "alarm_kinds": {}, "curve": found["runs"][0]["curve"]}
    assert found["runs"] == [listed_fields(read_summary(trained)) | more]
    assert found["of"] == 1 and found["skipped"] == []


def test_runs_are_searched_and_sorted(root: Path) -> None:
    client = client_of(root)
    assert names(client, "sort=return") == ["apple", "pear"] and names(client, "sort=name") == ["apple", "pear"]
    assert names(client, "search=cheetah") == ["pear"] and names(client, "search=cheetah+pear") == ["pear"]
    assert names(client, "search=cheetah+apple") == [] and names(client, "status=died") == ["apple", "pear"]
    assert names(client, "status=running") == []
    assert got(client, "/api/runs")["skipped"] == [{"name": "notes", "reason": "it has no events.jsonl"}]
    assert client.get("/api/runs?sort=rm").status_code == 400


def test_tags_and_notes_are_stored_and_found(root: Path) -> None:
    client = client_of(root)
    said = {"tags": ["baseline", " good "], "note": "line one\nline two: <b>ünïcode</b>"}
    stored = client.put("/api/runs/apple/notes", json=said, headers=BEARER)
    assert stored.status_code == 200 and stored.json() == {**said, "tags": ["baseline", "good"]}
    assert names(client, "tag=good") == ["apple"] == names(client, "search=UNÏCODE".replace("UN", "ÜN"))
    assert got(client, "/api/runs")["tags"] == ["baseline", "good"]
    assert got(client_of(root), "/api/runs/apple")["note"] == said["note"], "and another server has them too"
    client.put("/api/runs/apple/notes", json={"tags": [], "note": ""}, headers=BEARER)
    assert names(client, "tag=good") == []


def test_notes_that_two_people_edit_at_once_are_not_lost(root: Path) -> None:
    client, seen = client_of(root), {"tags": [], "note": ""}
    for said, code in (({"tags": ["mine"], "note": ""}, 200), ({"tags": ["theirs"], "note": ""}, 400)):
        answer = client.put("/api/runs/apple/notes", json={**said, "before": seen}, headers=BEARER)
        assert answer.status_code == code
    assert "changed meanwhile" in answer.text and got(client, "/api/runs/apple")["tags"] == ["mine"]


@pytest.mark.parametrize(
    "said",
    [
        [],
        {},
        {"tags": []},
        {"tags": "x", "note": ""},
        {"tags": [1], "note": ""},
        {"tags": [""], "note": ""},
        {"tags": ["x" * 41], "note": ""},
        {"tags": [str(n) for n in range(21)], "note": ""},
        {"tags": [], "note": 5},
        {"tags": [], "note": "x" * 10_001},
        {"tags": [], "note": "\x1b[2J"},
        {"tags": ["\ud800"], "note": ""},
        {"tags": [], "note": "", "more": 1},
    ],
    ids=lambda said: str(said)[:30].encode("ascii", "replace").decode(),
)
def test_notes_that_are_none_are_refused(root: Path, said: Any) -> None:
    body = json.dumps(said)
    headers = {**BEARER, "content-type": "application/json"}
    answer = client_of(root).put("/api/runs/apple/notes", content=body, headers=headers)
    assert answer.status_code == 400 and not (root / "apple" / "notes.json").exists()


def test_a_list_is_read_again_only_where_something_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def noted(path: Path) -> Any:
        read.append(path.name)
        return read_summary(path)

    monkeypatch.setattr(library, "read_summary", noted)
    monkeypatch.setattr(library, "SLOW", 1e9)
    shelf = Library(root)
    for _ in range(3):
        assert len(shelf.runs()[0]) == 2
    assert sorted(read) == ["apple", "notes", "pear"]
    with (root / "pear" / "events.jsonl").open("a") as log:
        log.write("\n")
    shelf.runs()
    assert read[3:] == ["pear"]
    shutil.rmtree(root / "apple")
    assert [one.path.name for one in shelf.runs()[0]] == ["pear"]


def test_a_run_page_has_everything_but_the_curves(trained: Path) -> None:
    found = got(client_of(trained.parent), "/api/runs/real")
    assert found["status"] == "finished" and found["complete"] and found["damaged_lines"] == 0
    assert found["size"] == (trained / "events.jsonl").stat().st_size
    assert [one["name"] for one in found["members"]] == ["seed-0", "seed-1"]
    for member in found["members"]:
        assert member["evaluations"] == 3 and member["first"]["step"] == 0 and member["last"]["step"] == 300
        assert member["best"]["mean"] >= max(member["first"]["mean"], member["last"]["mean"])
    assert found["session"]["pid"] == os.getpid() and found["session"]["versions"]["t3d"]
    assert found["session"]["device"] == "cpu" and found["session"]["parameters"] > 0
    assert found["settings"]["total_steps"] == {"default": 1_000_000, "value": 300}
    assert {"return", "mean_length"} <= {*found["metrics"]["eval"]} and "q_mean" in found["metrics"]["update"]
    assert found["news"][0]["event"] == "start" and found["news"][-1]["text"] == "finished"
    assert found["control"] is None and found["videos"] == []
    assert found["files"]["events.jsonl"] == found["size"]


def test_the_list_counts_alarms_once_also_those_that_a_resumed_run_sounds_again(root: Path) -> None:
    alarms = [Alarm(step=step, member=0, seed=0, kind="dead-units", text="", advice="") for step in (5, 9, 5)]
    (root / "apple" / "journal.jsonl").write_text("".join(f"{to_line(one)}\n" for one in alarms))
    found = got(client_of(root), "/api/runs?sort=name")["runs"]
    assert [one["alarms"] for one in found] == [2, 0]
    assert [one["alarm_kinds"] for one in found] == [{"dead-units": 2}, {}]


def test_alarms_and_notes_are_told_with_whom_they_are_about(tmp_path: Path) -> None:
    alarm = Alarm(step=5, member=1, seed=8, kind="dead-units", text="<script>", advice="lower it", time=1e9)
    write_run(tmp_path / "a", {7: [1.0], 8: [2.0]}, events=[alarm, Note(step=6, text="hello", time=2e9)])
    found = got(client_of(tmp_path), "/api/runs/a")
    about = {"step": 5, "time": 1e9, "member": "seed-8", "kind": "dead-units"}
    assert found["alarms"] == [{**about, "text": "<script>", "advice": "lower it"}]
    assert {"event": "note", "step": 6, "time": 2e9, "text": "hello"} in found["news"]


def test_settings_are_shown_with_their_source_and_compared(root: Path) -> None:
    client = client_of(root)
    found = got(client, "/api/runs/pear/config?against=apple")
    assert found["config"]["td3"]["gamma"] == 0.9
    assert found["source"] == (root / "pear" / "config.toml").read_text()
    assert found["diff"]["td3.gamma"] == {"this": 0.9, "other": 0.99} and found["against"] == "apple"
    assert {*found["diff"]} == {"td3.gamma", "env.id", "seeds"}
    assert got(client, "/api/runs/pear/config")["diff"] is None
    assert client.get("/api/runs/pear/config?against=nobody").status_code == 404


def test_runs_that_differ_only_in_their_seeds_are_compared_as_one(tmp_path: Path) -> None:
    write_run(tmp_path / "a", {0: [1.0, 2.0]})
    write_run(tmp_path / "b", {1: [3.0, 4.0]})
    write_run(tmp_path / "c", {0: [7.0, 8.0]}, td3={"gamma": 0.9}, events=[update(0, 0, 5, 1.0)])
    client = client_of(tmp_path)
    asked = "/api/compare?run=a&run=b&run=c&metric=return&metric=q_mean"
    found = got(client, asked)
    returns, q_mean = found["series"]
    assert [line["runs"] for line in returns["lines"]] == [["a", "b"], ["c"]]
    assert returns["lines"][0]["mean"]["y"] == [2.0, 3.0]
    assert [one["run"] for one in returns["lines"][0]["members"]] == ["a", "b"]
    assert [line["runs"] for line in q_mean["lines"]] == [["c"]]
    assert found["missing"] == {"a": ["q_mean"], "b": ["q_mean"], "c": []}
    assert found["settings"]["td3.gamma"] == {"a": 0.99, "b": 0.99, "c": 0.9}
    apart = got(client, f"{asked}&pool=no")["series"][0]
    assert [line["runs"] for line in apart["lines"]] == [["a"], ["b"], ["c"]]
    assert client.get("/api/compare?metric=return").status_code == 400


def test_a_comparison_counts_the_alarms_of_each_run_by_kind(tmp_path: Path) -> None:
    alarms = [Alarm(step=step, kind=kind, text="", advice="") for step, kind in enumerate(["a", "b", "a"])]
    write_run(tmp_path / "bad", {0: [1.0]}, events=alarms)
    write_run(tmp_path / "good", {0: [1.0]})
    found = got(client_of(tmp_path), "/api/compare?run=bad&run=good&metric=return")
    assert found["alarms"] == {"bad": {"a": 2, "b": 1}, "good": {}}


def test_the_list_counts_the_alarms_of_journals_and_reads_curves_as_time_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alarm = Alarm(step=1, kind="a", text='\n{"event": "alarm"', advice="")
    write_run(tmp_path / "none", {0: [1.0]})
    journal = "".join(f"{to_line(one)}\n" for one in (alarm, replace(alarm, step=2), replace(alarm, step=3)))
    (write_run(tmp_path / "journal", {0: [1.0]}) / "journal.jsonl").write_text(journal)
    client = client_of(tmp_path)
    monkeypatch.setattr(library, "CURVE_SECONDS", -1.0)
    found = got(client, "/api/runs?sort=name")
    assert [(run["alarms"], run["alarm_kinds"], run["curve"]) for run in found["runs"]] == [
        (3, {"a": 3}, None),
        (0, {}, None),
    ]
    assert not found["complete"]
    monkeypatch.undo()
    found = got(client, "/api/runs?sort=name")
    assert [run["curve"] for run in found["runs"]] == [[1.0], [1.0]] and found["complete"]


def test_the_list_has_the_curve_of_the_mean_over_seeds_and_follows_a_log_that_grows(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {seed: [10.0 * place + seed for place in range(4)] for seed in (0, 1)})
    write_run(tmp_path / "long", {0: [float(value % 7) for value in range(1000)]})
    write_run(tmp_path / "none", {0: []})
    client = client_of(tmp_path)

    def curves() -> Any:
        return {run["name"]: run["curve"] for run in got(client, "/api/runs")["runs"]}

    found = curves()
    assert found["a"] == [0.5, 10.5, 20.5, 30.5] and found["none"] == []
    assert len(found["long"]) <= library.POINTS and (min(found["long"]), max(found["long"])) == (0.0, 6.0)
    with (path / "events.jsonl").open("a") as log:
        log.write(to_line(evaluation(0, 0, 4000, 100 / 3)) + "\n" + '{"event": "eval", "step": 5000, "mean_ret')
    assert curves()["a"] == [0.5, 10.5, 20.5, 30.5, 33.33]
    (path / "events.jsonl").write_text("".join((path / "events.jsonl").read_text().splitlines(keepends=True)[:3]))
    assert curves()["a"] == [0.0, 10.0], "a resume has truncated it"


def test_the_curve_of_a_long_log_is_read_from_parts_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "a", {0: [float(value) for value in range(1000)]})
    size = (path / "events.jsonl").stat().st_size
    monkeypatch.setattr(library, "LARGEST", size // 4)
    monkeypatch.setattr(library, "PART", size // 64)
    (run,) = got(client_of(tmp_path), "/api/runs")["runs"]
    assert run["curve"] == sorted(run["curve"]) and 10 < len(run["curve"]) <= library.POINTS
    assert run["curve"][0] == 0 and run["curve"][-1] == 999


def test_settings_that_the_machine_chose_do_not_differ_from_the_defaults(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]}, td3={"gamma": 0.9}, engine="eager")
    log = path / "events.jsonl"
    start, rest = log.read_text().split("\n", 1)
    session = json.loads(start)
    session["config"] |= {"device": "cpu", "threads": 1, "old_setting": 5}
    session["config"]["env"]["num_envs"] = 4
    log.write_text(json.dumps(session) + "\n" + rest)
    settings = got(client_of(tmp_path), "/api/runs/a")["settings"]
    assert {*settings} == {"td3.gamma", "engine", "env.id", "run.name", "old_setting"}


def test_the_fifteen_steps_have_the_numbers_of_the_newest_update(trained: Path) -> None:
    found = got(client_of(trained.parent), "/api/runs/real/steps?member=seed-1")
    cfg = small_config(seeds=[0, 1])
    assert [one["title"] for one in found["steps"]] == [text.title for text in fifteen_texts(cfg, cfg.td3)]
    assert found["member"] == "seed-1" and found["step"] == 300 and found["updates"] > 0
    assert {name for one in found["steps"] for name in one["values"]} == {*UpdateTrace._fields}
    assert found["steps"][8]["values"]["y"]["shape"] == [16] and found["steps"][8]["settings"] == {"td3.gamma": 0.99}
    assert client_of(trained.parent).get("/api/runs/real/steps?member=seed-9").status_code == 400


def test_before_the_first_update_the_steps_have_no_numbers(root: Path) -> None:
    found = got(client_of(root), "/api/runs/apple/steps")
    assert found["updates"] is None and len(found["steps"]) == 15
    assert not any(one["values"] for one in found["steps"])


def test_figures_of_runs_not_looked_at_for_long_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        write_long_run(tmp_path / name, 1_000)
    monkeypatch.setattr(library, "KEPT_SECONDS", 0.0)
    shelf = Library(tmp_path)
    size = shelf.columns("a")[0].nbytes
    monkeypatch.setattr(library, "MOST_BYTES", int(2.5 * size))
    kept = shelf.columns("b")[0]
    shelf.columns("a")
    shelf.columns("c")
    assert [*shelf._columns] == ["a", "c"]
    assert shelf.columns("b")[0] is not kept, "and read again when somebody looks"
    monkeypatch.setattr(library, "MOST_BYTES", 1)
    assert shelf.columns("c")[1] and [*shelf._columns] == ["c"], "but never the one that is looked at"


def test_long_runs_that_do_not_fit_into_memory_together_are_compared_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        write_long_run(tmp_path / name, 4_000)
    alone = Library(tmp_path).columns("a")[0]
    monkeypatch.setattr(library, "MOST_BYTES", alone.nbytes)
    monkeypatch.setattr("t3d.store.columns.PART", alone.size // 5)
    monkeypatch.setattr(library, "SOON", 0.0)
    monkeypatch.setattr(library, "PATIENCE", 0.0)  # a request reads one part
    shelf = Library(tmp_path)
    client = client_of(shelf)
    asked = "/api/compare?run=a&run=b&run=c&pool=no&metric=q_mean&metric=return"
    answers = [got(client, asked) for _ in range(8)]
    assert [one["complete"] for one in answers].index(True) < 8
    assert [*shelf._columns] == ["a", "b", "c"] and shelf._bytes() <= library.MOST_BYTES
    drawn, returns = answers[-1]["series"]
    for line in drawn["lines"]:
        values = alone.tables[Update].reports(0, Metric(Update, "q_mean"))[2]
        assert min(line["members"][0]["y"]) == values.min() and max(line["members"][0]["y"]) == values.max()
        assert line["members"][0]["y"][-1] == values[-1]
    assert len(returns["lines"]) == 3


def test_figures_of_open_pages_are_not_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        write_long_run(tmp_path / name, 1_000)
    shelf = Library(tmp_path)
    monkeypatch.setattr(library, "MOST_BYTES", 1)

    shelf.look(["a"])
    kept = shelf.columns("a")[0]
    shelf.columns("b")
    assert shelf.columns("a")[0] is kept
    monkeypatch.setattr(library, "KEPT_SECONDS", 0.0)
    shelf.columns("b")
    assert shelf.columns("a")[0] is not kept, "but those of closed ones"


def test_a_run_that_grows_is_answered_as_it_is_now(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", {0: [1.0]}, events=[update(0, 0, 1, 5.0)])
    client = client_of(tmp_path)
    before = got(client, "/api/runs/a/series?metric=q_mean")
    with (path / "events.jsonl").open("a") as log:
        log.write(Path(path / "events.jsonl").read_text().splitlines()[-1].replace('"step": 1,', '"step": 2,') + "\n")
    after = got(client, "/api/runs/a/series?metric=q_mean")
    assert [len(one["series"][0]["lines"][0]["mean"]["y"]) for one in (before, after)] == [1, 2]
    assert after["size"] > before["size"]


def test_the_page_and_plotly_are_sent_and_no_other_file_of_the_package(root: Path) -> None:
    answer = client_of(root).get("/")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    for name, size in (("plotly.min.js", 10**6), ("panels.json", 1000), ("app.js", 1000)):
        whole = client_of(root).get(f"/static/{name}")
        assert whole.status_code == 200 and len(whole.content) > size
        again = client_of(root).get(f"/static/{name}", headers={"if-none-match": whole.headers["etag"]})
        assert again.status_code == 304 and again.content == b""
    assert client_of(root).get("/static/server.py").status_code == 404


def test_metrics_of_a_run_that_no_page_shows_any_more_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Library(root)
    monkeypatch.setattr(runs, "keep", lambda _: None)  # as if another thread had just found it too old
    assert runs.columns(next(path.name for path in root.iterdir() if path.is_dir()))[0].size > 0


def test_numbers_that_are_not_finite_are_null(tmp_path: Path) -> None:
    where = {"step": 1, "member": 0, "seed": 0, "time": 1.0}
    path = write_run(tmp_path / "a", {0: [1.0]}, events=[diagnosis(where)])
    text = (path / "events.jsonl").read_text().replace('"gamma": 0.99', '"gamma": NaN')
    (path / "events.jsonl").write_text(text)
    assert got(client_of(tmp_path), "/api/runs/a/config")["config"]["td3"]["gamma"] is None


def test_an_empty_or_missing_folder_has_no_runs(tmp_path: Path) -> None:
    assert got(client_of(tmp_path), "/api/runs")["runs"] == []
    assert got(client_of(tmp_path / "gone"), "/api/runs")["runs"] == []


def test_a_run_that_takes_long_to_read_is_not_read_all_the_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []

    def slow(path: Path) -> Any:
        reads.append(path.name)
        time.sleep(0.05)
        return read_summary(path)

    monkeypatch.setattr(library, "read_summary", slow)
    shelf = Library(root)
    shelf.run("apple")
    for step in range(1, 6):
        with (root / "apple" / "events.jsonl").open("a") as log:
            log.write(to_line(update(0, 0, 5000 + step, 1.0)) + "\n")
        assert shelf.run("apple").step == 5000 + step, "but how far it is, is known"
    assert reads == ["apple"]
