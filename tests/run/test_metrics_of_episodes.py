"""What episodes say in `info` is in all results, decides which policy is best, ends runs, and survives kills."""

from __future__ import annotations

import csv
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
import t3d
from t3d.app.cli import main
from t3d.config import Config, merge
from t3d.errors import NothingLeft, UserError
from t3d.events import EpisodeEnd, Eval, Event, Note
from t3d.insight.best_member import known_choice, play_choice
from t3d.policy.files import read_policy
from t3d.run.goal import Goal
from t3d.store.best import BestPolicies
from t3d.store.columns import read_columns
from t3d.store.reader import open_run
from t3d.types import EpisodeResult, Evaluation
from t3d.world.batch import open_batch
from t3d.world.evaluate import finish, play_episodes
from t3d.world.make import env_factory
from t3d.world.metrics import InfoMetrics
from talkers import STEPS

ASKED = ["energy:sum", "step:last", "place:min"]


def small(root: Path, name: str, world: str = "Talker", **changes: Any) -> Config:
    base = {"env": {"id": f"talkers:{world}", "metrics": ASKED}, "checkpoint": {"every_steps": 60}, "random_steps": 50}
    base |= {"run": {"root": str(root), "name": name}, "eval": {"every_steps": 50}, "total_steps": 200}
    return merge(merge(helpers.small_config(), base), changes)


def of_kind(events: list[Event], kind: type[Any]) -> list[Any]:
    return [event for event in events if isinstance(event, kind)]


def notes(events: list[Event]) -> list[str]:
    return [note.text for note in of_kind(events, Note) if "metric" in note.text or "stop_when" in note.text]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    list(t3d.train(small(root, "two", seeds=[0, 1], eval={"best_by": "success"}, keep_policies=70)))
    return root / "two"


def played(world: str, asked: list[str], act: Callable[[Any], Any], **env: Any) -> list[EpisodeResult]:
    cfg = merge(Config(), {"env": {"id": f"talkers:{world}", "metrics": asked, **env}}).env
    batch = open_batch(env_factory(cfg), cfg, "a test")
    try:
        return finish(play_episodes(act, batch, [1, 2, 3], 1000), 3)
    finally:
        batch.close()


def constant(value: float) -> Callable[[Any], Any]:
    return lambda observations: np.full((len(observations), 1), value, np.float32)


@pytest.mark.parametrize(("world", "env"), [("Talker", {}), ("three", {"num_envs": 3})])
def test_numbers_are_reduced_over_the_steps_of_an_episode(world: str, env: dict[str, Any]) -> None:
    words = ["energy:sum", "step:mean", "place:max"]
    for episode in played(world, words, constant(0.5), **env):
        place = episode.metrics["place"]
        assert episode.metrics["energy"] == pytest.approx(0.5 * STEPS)
        assert episode.metrics["step"] == pytest.approx((1 + STEPS) / 2)
        assert episode.metrics["success"] == (abs(place) < 0.5)
        assert not episode.unusable


def test_every_step_of_a_repeated_action_counts() -> None:
    (once, *_), (twice, *_) = (played("Talker", ["energy:sum"], constant(0.5), action_repeat=n) for n in (1, 3))
    assert once.metrics == twice.metrics and twice.length == -(-STEPS // 3)


def test_info_is_read_at_the_end_of_an_episode_only_unless_every_step_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = InfoMetrics._read
    monkeypatch.setattr(InfoMetrics, "_read", lambda self, info, name: reads.append(name) or read(self, info, name))  # type: ignore[func-returns-value]
    played("Talker", [], constant(0.5))
    assert reads == ["success"] * 3
    reads.clear()
    played("Talker", ["place:last", "step:sum"], constant(0.5))
    assert {name: reads.count(name) for name in reads} == {"success": 3, "place": 3, "step": 3 * STEPS}


def test_floats_are_taken_as_they_are_if_they_are_sane() -> None:
    """The usual case is quick, and the same."""
    metrics = InfoMetrics(["energy:sum", "success:max"])
    for energy in (1.5, np.float32(2.0), 3, True):
        metrics.add({"energy": energy, "is_success": False, "success": 7.0})
    assert metrics.of_episode({}) == ({"energy": 7.5, "success": 0.0}, {})
    for absurd in (float("nan"), -1e300, float("inf")):
        metrics.begin()
        metrics.add({"energy": absurd})
        assert "must be finite" in metrics.of_episode({})[1]["energy"]


def test_what_is_no_number_is_left_out_and_why_is_said() -> None:
    words = ["nan:last", "array:sum", "text:max", "none:last", "absent:mean", "onse:last", "once:last", "half:mean"]
    for episode in played("Garbled", words, constant(0.0)):
        assert episode.metrics == {"once": 2.0, "half": 1.0}
        assert episode.unusable["onse"] == "info has no 'onse', did you mean once?"
        assert set(episode.unusable) == {"nan", "array", "text", "none", "absent", "onse"}


def test_it_is_said_once_and_the_run_goes_on(tmp_path: Path) -> None:
    words = ["nan:last", "array:sum", "text:max", "absent:mean"]
    cfg = small(tmp_path, "garbled", "Garbled", env={"metrics": words}, eval={"best_by": "success"})
    events = list(t3d.train(cfg))
    assert len(notes(events)) == 5 and events[-1].event == "end"
    assert all(evaluation.metrics == {} for evaluation in of_kind(events, Eval))


def test_metrics_are_in_events_tables_and_files(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evals = open_run(trained).evals
    rows = [*csv.DictReader((trained / "metrics.csv").open())]
    columns = read_columns(trained)
    for member, evaluations in evals.items():
        names = {"success", "energy", "step", "place"}
        assert all(set(evaluation.metrics) == names for evaluation in evaluations)
        own = [row for row in rows if row["event"] == "eval" and row["seed"] == str(member.seed)]
        assert [float(row["success"]) for row in own] == [each.metrics["success"] for each in evaluations]
    episodes = [row for row in rows if row["event"] == "episode"]
    assert {float(row["step"]) for row in episodes} and all(float(row["energy"]) <= STEPS for row in episodes)
    assert {"success", "energy", "episode.success"} <= {metric.name for metric in columns.metrics()}
    assert main(["eval", str(trained), "--json", "--episodes", "4"]) == 0
    said = json.loads(capsys.readouterr().out)["metrics"]
    low, high = said["success"]["interval"]
    assert said["success"]["episodes"] == 4 and 0 <= low <= said["success"]["mean"] <= high <= 1 and low < high
    for command in ("plot", "compare"):
        assert main([command, str(trained), "--metric", "success", "--out", str(trained / "picture.png")]) == 0
    assert main(["plot", str(trained), "--metric", "sucess"]) == 2 and "did you mean success" in capsys.readouterr().err


def test_success_is_shown_beside_returns_in_every_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = small(tmp_path, "sets", eval={"best_by": "success", "sets": {"calm": {}, "odd": {}}}, seeds=[0, 1])
    list(t3d.train(cfg))
    assert main(["runs", "show", "sets", "--root", str(tmp_path)]) == 0
    shown, columns = capsys.readouterr().out, read_columns(tmp_path / "sets")
    assert "Mean return and success in evaluation (best: by eval.best_by, of" in shown
    calm, odd = columns.evaluations(), columns.evaluations("odd")
    steps = [next(each.step for each in reversed(evals) if each.best) for evals in calm.values()]
    pairs = zip(odd.values(), steps, strict=True)
    rate = np.mean([each.metrics["success"] for evals, step in pairs for each in evals if each.step == step])
    (line,) = (line for line in shown.splitlines() if "odd: mean return of the best policies" in line)
    assert f", success {100 * rate:.0f} %, " in line
    assert main(["report", str(tmp_path / "sets")]) == 0
    page = (tmp_path / "sets" / "report.html").read_text(encoding="utf-8")
    assert (
        "Info: energy" in page
        and ">in evaluations odd<" in page
        and ">in evaluations calm<" in page
        and "Info: success" not in page
    )
    assert "with the best evaluation by success, at step" in page and "chosen by success from" in page


def test_policies_are_kept_at_every_multiple_of_so_many_steps(trained: Path) -> None:
    kept = sorted(path.relative_to(trained / "policies") for path in (trained / "policies").rglob("*.safetensors"))
    assert [*map(str, kept)] == [f"step-{step}/seed-{seed}.safetensors" for step in (140, 70) for seed in (0, 1)]
    for file in kept:
        assert f"step-{read_policy(trained / 'policies' / file.with_suffix('')).about['step']}" == file.parent.name
    assert main(["eval", str(trained / "policies" / "step-70" / "seed-1.safetensors"), "--episodes", "1"]) == 0


@pytest.mark.parametrize(
    ("best_by", "better"),
    [
        ("return", (1.0, {"success": 0.0})),
        ("success", (0.0, {"success": 1.0})),
        ("success", (1.0, {"success": 0.5})),
        ("distance:min", (0.0, {"distance": 0.1})),
        ("distance", (0.0, {"distance": 0.9})),
    ],
)
def test_the_best_is_what_the_user_says(best_by: str, better: Any) -> None:
    cfg = merge(Config(), {"env": {"metrics": ["distance:last"]}, "eval": {"best_by": best_by}})
    others = [(0.5, {"success": 0.5, "distance": 0.5}), (0.5, {})]
    spec = helpers.make_spec()
    best = BestPolicies(1, cfg.criterion)

    def offered(mean_return: float, metrics: dict[str, float]) -> bool:
        episodes = [EpisodeResult(0, 0, mean_return, 1, terminated=True, metrics=metrics)]
        return best.offer(Evaluation(0, 0, helpers.snapshot_for(spec, 1), episodes))

    assert offered(*others[1]) and (best_by == "return" or offered(*others[0]))
    assert offered(*better) and not offered(*others[0]) and not offered(*better)
    again = BestPolicies(1, cfg.criterion)
    again.restore(best.state(), helpers.snapshot_for(spec, 1).architecture)
    assert again.ranks == best.ranks


def test_the_seed_that_succeeds_is_chosen_although_another_returns_more(trained: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(trained, tmp_path / "run"))
    (path / "best" / "fresh.json").unlink(missing_ok=True)
    run = open_run(path)
    cfg = merge(run.cfg, {"eval": {"best_by": "energy:min"}})
    choice = play_choice(run._replace(cfg=cfg))
    assert choice.member == min(choice.scores, key=choice.scores.__getitem__) == choice.ranked[0]
    assert ", energy " in choice.text(choice.member)
    by_return = play_choice(run._replace(cfg=merge(cfg, {"eval": {"best_by": "return"}})))
    assert by_return.member == max(by_return.mean_returns, key=by_return.mean_returns.__getitem__)
    assert known_choice(run._replace(cfg=cfg)) is None  # the choice was by the return
    again = play_choice(run._replace(cfg=cfg))
    assert again == choice == known_choice(run._replace(cfg=cfg))


def test_a_run_ends_after_three_evaluations_in_a_row_and_is_over(tmp_path: Path) -> None:
    cfg = small(tmp_path, "goal", "Saint", stop_when="success=0.95", env={"metrics": []})
    events = list(t3d.train(cfg))
    assert [event.step for event in of_kind(events, Eval)] == [0, 50, 100]
    assert events[-1].reason == "finished" and "stop_when" in notes(events)[0]  # type: ignore[attr-defined]
    with pytest.raises(NothingLeft, match="stop_when"):
        list(t3d.resume(tmp_path / "goal"))
    text = (tmp_path / "goal" / "config.toml").read_text()
    (tmp_path / "goal" / "config.toml").write_text(text.replace("success=0.95", ""))
    assert list(t3d.resume(tmp_path / "goal"))[-1].step == 200


def test_evaluations_that_miss_the_goal_start_the_count_again() -> None:
    goal, reached = Goal(merge(Config(), {"stop_when": "return=0"})), []
    for step, total in enumerate([1.0, 1.0, -1.0, 1.0, 1.0, 1.0]):
        said = goal.note_on([Evaluation(step, 0, None, [EpisodeResult(0, 0, total, 1, False)])])  # type: ignore[arg-type]
        reached.append((goal.is_reached, len(said)))
    assert reached == [(False, 0)] * 5 + [(True, 1)]


@pytest.mark.parametrize("at", [57, 113])
def test_a_resumed_run_says_the_same_to_the_last_bit(at: int, tmp_path: Path) -> None:
    """Stopped in the middle of episodes, whose sums so far must not be lost."""
    goal: dict[str, Any] = {"eval": {"best_by": "place:min"}, "stop_when": "energy=1e6", "keep_policies": 70}
    straight, cfg = (small(tmp_path, name, seeds=[0, 1], **goal) for name in ("straight", "stopped"))
    list(t3d.train(straight))
    stop = threading.Event()
    for event in t3d.train(cfg, stop=stop):
        if event.step >= at:
            stop.set()
    assert 0 < open_run(tmp_path / "stopped").evals[cfg.members[0]][-1].step <= at + STEPS
    list(t3d.resume(tmp_path / "stopped"))

    def said(name: str) -> list[Any]:
        lines = map(json.loads, (tmp_path / name / "events.jsonl").read_text().splitlines())
        kinds = (EpisodeEnd.event, Eval.event, Note.event)
        return [{**line, "time": 0} for line in lines if line["event"] in kinds]

    assert said("straight") == said("stopped")
    files = [file.relative_to(tmp_path / "straight") for file in (tmp_path / "straight").rglob("seed-*.safetensors")]
    assert len(files) == 2 * (1 + 1 + 2)  # best, last, and kept at two steps
    for file in files:
        if "checkpoints" not in file.parts:
            assert (tmp_path / "straight" / file).read_bytes() == (tmp_path / "stopped" / file).read_bytes(), file


def test_actors_say_what_their_episodes_say(tmp_path: Path) -> None:
    cfg = small(tmp_path, "actors", actors="local:1", eval={"best_by": "success"})
    events = list(t3d.train(cfg))
    for event in [*of_kind(events, EpisodeEnd), *of_kind(events, Eval)]:
        assert set(event.metrics) == {"success", "energy", "step", "place"} and event.metrics["step"] == STEPS


MISTAKES: dict[str, dict[str, Any]] = {
    "env.metrics=energy is not a name in info": {"env": {"metrics": ["energy"]}},
    "did you mean sum?": {"env": {"metrics": ["energy:summ"]}},
    "env.metrics names energy twice": {"env": {"metrics": ["energy:sum", "energy:max"]}},
    "'return' is the return itself": {"env": {"metrics": ["return:sum"]}},
    "is not made of letters": {"env": {"metrics": ["my energy:sum"]}},
    "did you mean success?": {"eval": {"best_by": "succes"}},
    "it has return, success, energy, and --env.metrics adds others": {
        "eval": {"best_by": "distance"},
        "env": {"metrics": ["energy:sum"]},
    },
    "neither :min nor :max": {"eval": {"best_by": "success:highest"}},
    "stop_when=success is not a metric and a number": {"stop_when": "success"},
    "stop_when=success>0.9 is not": {"stop_when": "success>0.9"},
    "cannot be a rate": {"stop_when": "success=95"},
    "stop_when=distance=3 names no metric": {"stop_when": "distance=3"},
    "keep_policies=-1 is out of range": {"keep_policies": -1},
}


@pytest.mark.parametrize("sentence", MISTAKES)
def test_a_mistake_is_one_sentence(sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        merge(Config(), MISTAKES[sentence])
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
