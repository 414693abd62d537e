"""Arguments of training episodes that are scheduled or drawn: what they are, that they arrive, and exact resume."""

from __future__ import annotations

import csv
import random
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_resume import broken_off

import drones
import helpers
import t3d
from run_folders import assert_equal, events_of, folder_of, run
from t3d.actors.inline import InlineCollector
from t3d.app.cli import main
from t3d.config import Config, EnvConfig, load_config, merge
from t3d.config.presets import as_config
from t3d.config.schedules import parse_schedules
from t3d.events import EpisodeEnd, Eval, Note
from t3d.sinks.process import Scalars
from t3d.store.columns import read_columns
from t3d.world.make import env_factory
from t3d.world.schedules import episode_args

SCHEDULE = {"wind": "0..2@200", "goal": "choice:door,window"}
DRAWN = {"wind": "uniform:-1:2", "goal": "choice:door,window"}
WAYS = {"made again": "drones:Telling", "options of reset": "drones:Directed"}
METRICS = ["wind:last", "to_window:last"]


def config(root: Path, name: str, env_id: str = "drones:Telling", **changes: Any) -> Config:
    env = {"id": env_id, "schedule": SCHEDULE, "metrics": METRICS, **changes.pop("env", {})}
    run = {"root": str(root), "name": name}
    return helpers.small_config(env=env, run=run, threads=1, checkpoint={"every_steps": 60}, **changes)


def episodes_of(events: Any) -> list[EpisodeEnd]:
    return [event for event in events if isinstance(event, EpisodeEnd)]


def test_schedules_are_straight_lines_and_draws_are_quantiles() -> None:
    at = {name: each.at for name, each in parse_schedules({
        "up": "0..2@100", "down": "1.5..-0.5@50..150", "uniform": "uniform:-1:3", "log": "loguniform:0.5:8",
        "word": "choice:door,window,1,true",
    }).items()}  # fmt: skip
    assert [at["up"](step, 0.7) for step in (0, 25, 100, 10**9)] == [0, 0.5, 2, 2]
    assert [at["down"](step, 0.7) for step in (0, 50, 100, 150, 151)] == [1.5, 1.5, 0.5, -0.5, -0.5]
    assert [at["uniform"](7, share) for share in (0, 0.25, 0.5)] == [-1, 0, 1]
    assert [at["log"](7, share) for share in (0, 0.25, 0.5)] == pytest.approx([0.5, 1, 2], rel=1e-12)
    assert [at["word"](7, share) for share in (0, 0.25, 0.5, 0.75)] == ["door", "window", 1, True]
    largest = np.nextafter(1, 0)
    assert at["uniform"](0, largest) <= 3 and at["log"](0, largest) <= 8 and at["word"](0, largest) is True


def test_draws_have_their_distribution_and_are_their_seeds_alone() -> None:
    schedule = {"mass": "loguniform:0.5:2", "wind": "uniform:0:3", "goal": "choice:door,window,roof"}
    cfg = EnvConfig("any", args={"mass": 7, "gains": [1]}, schedule=schedule)
    drawn = [episode_args(cfg, 3, 0, episode, step=0) for episode in range(3000)]
    assert all(each["gains"] == [1] for each in drawn)
    uniform = [np.array([each["wind"] for each in drawn]) / 3]
    uniform.append(np.log2([each["mass"] for each in drawn]) / 2 + 0.5)
    for values in uniform:
        assert values.min() >= 0 and values.max() <= 1
        gap = np.abs(np.sort(values) - (np.arange(3000) + 0.5) / 3000).max()
        assert gap < 1.63 / np.sqrt(3000), "Kolmogorov and Smirnov's test at 1 %"
    assert 12 * abs(np.mean((uniform[0] - 0.5) * (uniform[1] - 0.5))) < 0.06
    counts = [sum(each["goal"] == goal for each in drawn) for goal in ("door", "window", "roof")]
    assert min(counts) > 900, "of 1,000 each; the deviation is 26"
    assert drawn[:50] == [episode_args(cfg, 3, 0, episode, step=9**9) for episode in range(50)]
    for other in ((4, 0, 0), (3, 1, 0), (3, 0, 1)):  # seed, environment, episode
        assert episode_args(cfg, *other, step=0)["wind"] != drawn[0]["wind"]
    alone = replace(cfg, schedule={"wind": "uniform:0:3"})
    assert episode_args(alone, 3, 0, 0, 0)["wind"] == drawn[0]["wind"], "whatever else is drawn"


@pytest.mark.parametrize(
    ("way", "actors"),
    [
        *((way, "inline") for way in WAYS),
        ("made again", "local:1"),
        pytest.param("options of reset", "local:1", marks=pytest.mark.slow),
    ],
)
def test_every_episode_has_the_arguments_that_its_event_says(tmp_path: Path, way: str, actors: str) -> None:
    cfg = config(tmp_path, "run", WAYS[way], seeds=[5, 6], env={"num_envs": 2}, actors=actors)
    events = list(t3d.train(cfg))
    episodes = episodes_of(events)
    assert len(episodes) >= 24 and len({episode.args["wind"] for episode in episodes}) > 5
    for episode in episodes:
        to_window = float(episode.args["goal"] == "window")
        assert episode.metrics == {"wind": episode.args["wind"], "to_window": to_window}
        expected = episode_args(cfg.env, episode.seed or 0, episode.env, episode.episode, 0)
        assert episode.args["goal"] == expected["goal"]
    if actors == "inline":
        begins = [(episode.episode * 40) / 100 for episode in episodes]
        assert [episode.args["wind"] for episode in episodes] == pytest.approx([min(2, one) for one in begins])
    (note,) = [event.text for event in events if isinstance(event, Note)] if way == "made again" else [""]
    assert not note or note.startswith("env.schedule: drones:Telling is made again before each episode with another")
    assert not note or (note.count(" ms; ") == 1 and "metadata['reset_options']" in note)


def test_both_ways_are_the_same_training_and_options_make_no_new_environment(tmp_path: Path) -> None:
    first = episodes_of(t3d.train(config(tmp_path, "again")))
    drones.Directed.made = 0
    events = list(t3d.train(config(tmp_path, "options", "drones:Directed")))
    made = drones.Directed.made
    assert [event.total_reward for event in episodes_of(events)] == [event.total_reward for event in first]
    drones.Directed.made = 0
    list(t3d.train(config(tmp_path, "none", "drones:Directed", env={"schedule": {}})))
    assert made == drones.Directed.made + 1, "the trial of the schedule"


def test_evaluations_have_the_arguments_of_evaluations(tmp_path: Path) -> None:
    def first(name: str, **env: Any) -> list[float]:
        sets = {"same": {}, "windy": {"wind": 1.5}}
        events = t3d.train(config(tmp_path, name, "drones:Directed", env=env, eval={"sets": sets}))
        return next(event.returns for event in events if isinstance(event, Eval))

    fixed = first("fixed", schedule={}, args={"wind": 1.0})
    assert first("scheduled", args={"wind": 1.0}) == fixed != first("default")


def test_they_are_columns_of_the_table_the_log_and_tensorboard(tmp_path: Path) -> None:
    path = folder_of(run(config(tmp_path, "run"), tmp_path))
    episodes = episodes_of(events_of(path))
    with (path / "metrics.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["event"] == "episode"]
    assert [(row["args.wind"], row["args.goal"]) for row in rows] == [
        (str(episode.args["wind"]), episode.args["goal"]) for episode in episodes
    ]
    columns = read_columns(path)
    (metric,) = [metric for metric in columns.metrics() if metric.name.startswith("args.")]
    (series,) = columns.series(metric).values()
    assert metric.name == "args.wind" and columns.damaged == 0
    assert series.values.tolist() == [episode.args["wind"] for episode in episodes]
    scalars = Scalars(load_config(path / "config.toml"))
    points = [point for event in events_of(path) if isinstance(event, EpisodeEnd | Eval) for point in scalars.of(event)]
    newest = [point.values["rollout/args.wind"] for point in points if "rollout/args.wind" in point.values]
    assert newest[0] == episodes[0].args["wind"] and not any("args.goal" in point.values for point in points)


def test_they_are_given_in_toml_python_and_on_top_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('[env]\nschedule = {wind = "0..2@100"}\n')
    from_file = load_config(tmp_path / "mine.toml")
    assert from_file == as_config({"env": {"schedule": {"wind": "0..2@100"}}})
    flags = [
        "--config",
        str(tmp_path / "mine.toml"),
        "--env.schedule",
        "goal=choice:door,window",
        "--total-steps",
        "60",
    ]
    sizes = [
        "--random-steps",
        "30",
        "--td3.batch-size",
        "8",
        "--run.root",
        str(tmp_path),
        "--run.name",
        "both",
        "--quiet",
    ]
    assert main(["train", "drones:Drone", "--no-video", *flags, *sizes]) == 0
    assert load_config(tmp_path / "both/config.toml").env.schedule == {"wind": "0..2@100", "goal": "choice:door,window"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [40, 130, 155])
def test_a_killed_run_with_schedules_is_resumed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, step: int
) -> None:
    whole = folder_of(run(config(tmp_path, "straight", WAYS[way]), tmp_path))
    killed = broken_off(monkeypatch, config(tmp_path, "stopped", WAYS[way]), step, kill=True)
    for broken in (killed, tmp_path / "stopped"):
        list(t3d.resume(broken))
        assert_equal(whole, broken)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_killed_at_ten_random_moments_it_is_resumed_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    changes: dict[str, Any] = {"sweep": ["noise.exploration_noise=0.05,0.3"], "seeds": [0, 1], "scale_rewards": True}
    changes["env"] = {"num_envs": 2, "schedule": {**DRAWN, "gains": "0..1@300"}}
    whole = folder_of(run(config(tmp_path, "straight", WAYS[way], **changes), tmp_path))
    for step in random.Random(36).sample(range(1, 299), 10):
        killed = broken_off(monkeypatch, config(tmp_path, "stopped", WAYS[way], **changes), step, kill=True)
        list(t3d.resume(killed))
        assert_equal(whole, killed)
        for folder in ("stopped", "killed"):
            shutil.rmtree(tmp_path / folder)


@pytest.mark.parametrize("way", WAYS)
def test_arguments_that_changed_while_it_ran_are_resumed_with_the_episode_that_had_the_old_ones(way: str) -> None:
    cfg = merge(helpers.small_config(env={"id": WAYS[way], "metrics": METRICS}), {"env": {"args": {"wind": 1.0}}})
    windy = merge(cfg, {"env": {"args": {"wind": 3.0}}, "noise": {"exploration_noise": 0.0}})
    snapshot = helpers.snapshot_for
    first = InlineCollector(cfg, env_factory(cfg.env))
    first.publish(snapshot(first.spec, 1))
    for _ in range(50):
        first.poll()
    first.use(windy)
    for _ in range(3):
        first.poll()
    state = first.state()
    again = InlineCollector(windy, env_factory(windy.env))
    assert again.restore(state, threading.Event()) == []
    again.publish(snapshot(again.spec, 1))
    winds = []
    for _ in range(60):
        (ours,), (theirs,) = first.poll().rollouts, again.poll().rollouts
        assert ours.rows.tobytes() == theirs.rows.tobytes()
        winds += [episode.metrics["wind"] for episode in ours.episodes]
    assert winds == [1.0, 3.0, 3.0]


MISTAKES: dict[str, str] = {
    "wind=2": "stays the same, so it belongs in env.args; a schedule is FROM..TO@STEPS",
    "wind=0..2": "lacks the steps; write 0..2@STEPS",
    "wind=fast": "cannot be read; write FROM..TO@STEPS",
    "wind=0..x@100": "needs finite numbers",
    "wind=1..1@100": "stays the same; give two values",
    "wind=0..1@100..50": "must end at a whole step, after the one at which it begins",
    "wind=0..1@0.5": "must end at a whole step",
    "wind=unifrom:0:1": "cannot be read, did you mean uniform?",
    "wind=uniform:2:0": "needs two numbers, the lower one first",
    "wind=uniform:1": "needs two numbers, the lower one first",
    "wind=loguniform:0:1": "needs numbers above 0, whose logarithms are drawn",
    "goal=choice:door": "needs two to 100 values, each only once",
    "goal=choice:door,door": "needs two to 100 values, each only once",
    "wnd=0..1@100": "drones:Drone takes wind, gains, goal, and wnd is none of them, did you mean wind?",
    "wind=0..1@100 wind=0..2@100": "names wind twice; give it once",
    "wind=0..1@100 --sweep env.args.wind=0,1": "wind is swept and in env.schedule; leave it out of one of them",
}
OF_ENVIRONMENTS = {
    "drones:side_by_side": "env.schedule does not work on a VectorEnv; draw arguments inside its environments",
    "drones:Vague": "metadata['reset_options'] is 'wind'; make it a list of names of arguments",
    "drones:Deaf": "metadata['reset_options'] names wind, but its reset takes seed",
    "drones:Growing": "has other observations or actions than with wind=0.0",
}


@pytest.mark.parametrize(("env_id", "words", "said"), [
    *(("drones:Drone", words, said) for words, said in MISTAKES.items()),
    *((env_id, "wind=0.0..2@100", said) for env_id, said in OF_ENVIRONMENTS.items()),
])  # fmt: skip
def test_a_mistake_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env_id: str, words: str, said: str
) -> None:
    _refused(tmp_path, capsys, env_id, words, said)


@pytest.mark.parametrize(("env_id", "words"), [("drones:Drone", "wnd=0..1@100"), ("drones:Growing", "wind=0.0..2@100")])
def test_so_it_is_with_actors(tmp_path: Path, capsys: pytest.CaptureFixture[str], env_id: str, words: str) -> None:
    said = MISTAKES[words] if words in MISTAKES else OF_ENVIRONMENTS[env_id]
    _refused(tmp_path, capsys, env_id, words, said, "--actors", "local:1")


def _refused(tmp_path: Path, capsys: Any, env_id: str, words: str, said: str, *more: str) -> None:
    flags = [*more, "--env.args", "wind=0.0"] if env_id.endswith("Growing") else [*more]
    flags += ["--env.num-envs", "2"] if env_id.endswith("side_by_side") else []
    root = ["--total-steps", "600", "--random-steps", "300", "--run.root", str(tmp_path / "runs")]
    assert main(["train", env_id, "--env.schedule", *words.split(), *flags, *root]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and not (tmp_path / "runs").exists()
