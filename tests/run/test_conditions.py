"""Arguments, wrappers and evaluation sets: recorded, each in its own environment, and resumed to the last bit."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_resume import broken_off

import helpers
import t3d
from drones import Drone
from run_folders import assert_equal, events_of, folder_of, run
from t3d.config import Config, Member, load_config
from t3d.errors import NothingLeft, UserError
from t3d.events import End, Eval, Event, Resumed
from t3d.seeds import derive
from t3d.sinks.process import Scalars
from t3d.store.columns import read_columns
from t3d.store.reader import open_run
from t3d.world.evaluate import eval_seeds

WORLD: dict[str, Any] = {
    "env": {"id": "drones:Drone", "args": {"wind": 0.5, "gains": [1, 2.0]}, "wrappers": ["drones:Halved"]},
    "eval": {"sets": {"calm": {"wind": 0}, "windy": {"wind": 3, "goal": "window"}}},
}


def config(root: Path, name: str, **changes: Any) -> Config:
    world = {**WORLD, "threads": 1, "run": {"root": str(root), "name": name}}
    return helpers.small_config(**{**world, "checkpoint": {"every_steps": 60}, **changes})


def evals_of(path: Path) -> dict[tuple[int, str], list[Eval]]:
    evals = defaultdict[tuple[int, str], list[Eval]](list)
    for event in events_of(path):
        if isinstance(event, Eval):
            evals[event.member or 0, event.set].append(event)
    return evals


def _run(cfg: Config) -> list[Any]:
    return list(t3d.train(cfg))


def returns(events: list[Any], member: int = 0) -> list[list[float]]:
    return [event.returns for event in events if isinstance(event, Eval) and event.chooses and event.member == member]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("straight")
    return folder_of(run(config(root, "run"), root))


def test_each_set_is_evaluated_under_its_own_conditions_and_the_first_chooses_the_best(straight: Path) -> None:
    evals = evals_of(straight)
    assert [*evals] == [(0, "calm"), (0, "windy")]
    calm, windy = evals.values()
    assert [event.step for event in calm] == [event.step for event in windy] == [0, 150, 300]
    assert all(event.chooses for event in calm) and not any(event.chooses or event.best for event in windy)
    columns = read_columns(straight)
    (member,) = columns.members
    stored = {name: [each.mean_return for each in columns.evaluations(name)[member]] for name in ("", "windy")}
    assert stored == {"": [one.mean_return for one in calm], "windy": [one.mean_return for one in windy]}
    assert [*columns.other_sets] == ["windy"] and columns.damaged == 0
    (windy_metric,) = [metric for metric in columns.metrics() if metric.name == "return.windy"]
    series = columns.series(windy_metric)[member]
    assert series.values.tolist() == stored["windy"] and series.spread is not None
    opened = open_run(straight)
    assert [each.mean_return for each in opened.other_sets["windy"][member]] == stored["windy"]
    assert opened.policy(member).about["mean_return"] == max(stored[""])


def test_what_an_evaluation_plays_is_what_its_set_says(straight: Path) -> None:
    cfg = load_config(straight / "config.toml")
    (member,) = cfg.members
    assert cfg.eval_env(member, "windy").args == {"wind": 3, "gains": [1, 2.0], "goal": "window"}
    assert cfg.eval_env(member) == cfg.eval_env(member, "calm") and cfg.eval_env(member).args["wind"] == 0
    about = open_run(straight).policy(member).about
    assert about["env_args"] == {"wind": 0.5, "gains": [1, 2.0]} and about["wrappers"] == ["drones:Halved"]
    environment = events_of(straight)[0].environment  # type: ignore[attr-defined]
    assert environment["wrappers"] == ["drones:Halved"]
    assert {title: other["args"]["wind"] for title, other in environment["others"].items()} == {
        "evaluation calm": 0,
        "evaluation windy": 3,
    }


def test_starts_are_shared_by_all_seeds_and_those_of_the_first_set_are_those_without_sets() -> None:
    cfg = helpers.small_config(**WORLD, seeds=[0, 1])
    today = [derive(0, "evaluation", episode) for episode in range(2)]
    assert eval_seeds(cfg, "calm") == eval_seeds(helpers.small_config(), "") == today
    assert not {*eval_seeds(cfg, "windy")} & {*today}


def test_the_first_set_alone_and_arguments_of_evaluations_are_the_same_evaluation(tmp_path: Path) -> None:
    env = {"id": "drones:Drone"}
    ways = [
        config(tmp_path, "sets", env=env, eval={"sets": {"windy": {"wind": 2}, "calm": {}}}),
        config(tmp_path, "args", env=env, eval={"args": {"wind": 2}}),
        config(tmp_path, "class", env=env, eval={"env": "drones:Windy"}),
    ]
    first, *others = (returns(_run(cfg)) for cfg in ways)
    assert others == [first, first] and len(first) == 3
    assert first != returns(_run(config(tmp_path, "none", env=env, eval={"sets": {}})))
    windy, calm = evals_of(tmp_path / "sets").values()
    best = max(event.mean_return for event in windy)
    assert best < max(event.mean_return for event in calm), "otherwise the next lines show nothing"
    assert open_run(tmp_path / "sets").policy(Member(0)).about["mean_return"] == best
    assert not any(event.best for event in calm)


def test_wrappers_apply_in_their_order(tmp_path: Path) -> None:
    def first(*wrappers: str) -> float:
        names = [f"drones:{wrapper}" for wrapper in wrappers]
        events = _run(config(tmp_path, "-".join(["w", *wrappers]), env={"id": "drones:Drone", "wrappers": names}))
        return next(event.mean_return for event in events if isinstance(event, Eval))

    plain = first()
    assert first("Halved", "Less") == pytest.approx(plain / 2 - 20)
    assert first("Less", "Halved") == pytest.approx((plain - 20) / 2)


def test_members_of_a_sweep_act_and_are_evaluated_in_environments_of_their_own(tmp_path: Path) -> None:
    swept = config(
        tmp_path, "swept", env={"id": "drones:Drone"}, eval={"sets": {}}, sweep=["env.args.wind=0,2"], seeds=[3]
    )
    alone = [
        config(
            tmp_path, f"alone-{wind}", env={"id": "drones:Drone", "args": {"wind": wind}}, eval={"sets": {}}, seeds=[3]
        )
        for wind in (0, 2)
    ]
    together = _run(swept)
    for number, cfg in enumerate(alone):
        assert returns(together, number) == returns(_run(cfg))
    path = tmp_path / "swept"
    run = open_run(path)
    assert [run.env(None, member).args for member in run.cfg.members] == [{"wind": 0}, {"wind": 2}]
    assert run.policy(run.cfg.members[1]).about["env_args"] == {"wind": 2}


def test_arguments_from_python_go_to_whatever_makes_the_environment(tmp_path: Path) -> None:
    env = {"id": "", "args": {"wind": 2}}
    ways: dict[str, tuple[Any, Any]] = {
        "importable": (Drone, env),
        "a lambda": (lambda wind: Drone(wind, goal="door"), env),
        "partial": (partial(Drone, wind=2), {"id": ""}),
        "partial by place": (partial(Drone, 2), {"id": ""}),
        "its id": (None, {"id": "drones:Drone", "args": {"wind": 2}}),
    }
    played = {}
    for name, (make_env, env_of) in ways.items():
        cfg = config(tmp_path, name.replace(" ", "-"), env=env_of, eval={"sets": {"same": {}, "calm": {"wind": 0}}})
        played[name] = [e.returns for e in t3d.train(cfg, make_env=make_env) if isinstance(e, Eval)]
    assert len({str(of_way) for of_way in played.values()}) == 1
    with pytest.raises(UserError, match=r"^env.args says wind=3, and make_env gives wind=2; give it once$"):
        list(t3d.train(config(tmp_path, "twice", env={"id": "", "args": {"wind": 3}}), make_env=partial(Drone, wind=2)))


def test_the_names_of_scalars_say_the_set(straight: Path) -> None:
    scalars = Scalars(load_config(straight / "config.toml"))
    points = [point for event in events_of(straight) if isinstance(event, Eval) for point in scalars.of(event)]
    assert "eval/mean_reward" in points[0].values and "eval_windy/mean_reward" in points[1].values
    assert not any(name.startswith("eval/") for name in points[1].values)


@pytest.mark.parametrize("step", [40, 130, 155])
def test_a_killed_run_with_arguments_wrappers_and_sets_is_resumed_exactly(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    killed = broken_off(monkeypatch, config(tmp_path, "stopped"), step, kill=True)
    for broken in (killed, tmp_path / "stopped"):
        list(t3d.resume(broken))
        assert_equal(straight, broken)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_ten_random_moments_it_is_resumed_exactly(tmp_path: Path) -> None:
    """SIGKILL, to the command line, with everything that the drone of the guide says about itself."""
    tests = Path(__file__).parents[1]
    metrics = ["distance:last", "energy:sum", "reward_near:mean"]
    drone = {"id": f"{tests.parent / 'examples' / 'drone.py'}:Drone", "args": {"tolerance": 0.5}, "metrics": metrics}
    changes: dict[str, Any] = {
        "env": {**drone, "wrappers": [f"{tests / 'drones.py'}:Halved"], "num_envs": 2},
        "eval": {"sets": {"calm": {"wind": 0}, "windy": {"wind": 3}}, "best_by": "distance:min", "every_steps": 200},
        **{"sweep": ["env.args.wind=0,1"], "seeds": [0, 1], "normalise_observations": True},
        **{"total_steps": 1500, "keep_policies": 400, "checkpoint": {"every_steps": 100}, "log": {"every_steps": 20}},
    }
    began = time.monotonic()
    whole = folder_of(run(config(tmp_path, "straight", **changes), tmp_path))
    took, chance, kills, folders = time.monotonic() - began, random.Random(35), 0, [tmp_path / "killed-0"]
    while kills < 10:
        name = ["--run.root", str(tmp_path), "--run.name", folders[-1].name, "--resume-or-start", "--no-video"]
        command = [sys.executable, "-m", "t3d", "train", "--config", str(whole / "config.toml"), *name]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
            assert training.stdout is not None
            next((line for line in training.stdout if line.startswith("step")), None)
            time.sleep(chance.uniform(0, took / 3))
            training.kill()
        kills += training.returncode == -signal.SIGKILL
        if said(folders[-1], "events.jsonl", End):
            folders.append(tmp_path / f"killed-{len(folders)}")
    resumed = sum(said(folder, "journal.jsonl", Resumed) for folder in folders)
    assert resumed >= 5, f"only {resumed} of {kills} kills came while it trained"
    for folder in filter(Path.is_dir, folders):
        with suppress(NothingLeft):
            list(t3d.resume(folder))
        assert_equal(whole, folder)


def said(folder: Path, file: str, kind: type[Event]) -> int:
    """How often; the last line may be torn."""
    return (folder / file).read_text().count(f'"{kind.event}"') if (folder / file).is_file() else 0


def test_actor_processes_evaluate_the_same_sets_as_one_process(tmp_path: Path, straight: Path) -> None:
    """Before training the policy is the same, so its evaluations are."""
    apart = folder_of(run(config(tmp_path, "apart", actors="local:1"), tmp_path))
    first = {name: of_set[0].returns for (_, name), of_set in evals_of(straight).items()}
    assert {name: of_set[0].returns for (_, name), of_set in evals_of(apart).items()} == first
    calm, windy = ([event.step for event in evals_of(apart)[0, name]] for name in ("calm", "windy"))
    assert calm == windy and calm[-1] == 300
