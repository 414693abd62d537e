"""Whole runs with actor processes: evaluated beside training, saved, killed, resumed, and learning all the same."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import actor_worlds
import helpers
from actor_helpers import actor_config, check_rows, of_kind, publish_zeros, stopped_at, unstarted
from helpers import snapshot_for
from t3d.actors import supervisor as workers
from t3d.actors.inline import InlineCollector
from t3d.actors.local import LocalCollector, shares
from t3d.app.cli import main
from t3d.app.train import parse
from t3d.config import Config, load_toml, merge
from t3d.data.memory import Memory
from t3d.errors import NobodyLeft, UserError
from t3d.events import ActingEvent, ActorEvent, End, EpisodeEnd, Eval, Resumed, Saved
from t3d.run.live import resume, train
from t3d.world.noise import scale_factor

# Workers


def test_what_an_environment_has_started_ends_with_its_actor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLEEP", helpers.SLEEP)
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    events = list(train(actor_config(tmp_path, "Family", env={"hang_seconds": 1.0})))
    assert [event.what for event in of_kind(events, ActorEvent)] == ["lost", "back"]
    assert helpers.simulators() == []


def test_what_workers_print_is_in_a_file_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEEN_FILE", str(tmp_path / "seen"))
    monkeypatch.setenv("FAULT", "step exception")
    monkeypatch.setenv("FAULT_FILE", str(tmp_path / "fault"))
    list(train(actor_config(tmp_path, "Watched", seeds=[0], actors="local:1")))
    assert "environments may print" in (tmp_path / "a" / "workers.log").read_text()
    events = list(train(actor_config(tmp_path, "Faulty", run={"name": "b"}, seeds=[0], actors="local:1")))
    assert "lost its mind (actor_worlds.py, line " in of_kind(events, ActorEvent)[0].text
    assert "Traceback" in (tmp_path / "b" / "workers.log").read_text()


def test_what_workers_print_takes_little_of_the_disk(tmp_path: Path) -> None:
    """Two files of 8 MiB, though an environment prints four times as much."""
    events = list(train(actor_config(tmp_path, "Chatty", seeds=[0], actors="local:1")))
    assert of_kind(events, End)[0].reason == "finished" and not of_kind(events, ActorEvent)
    sizes = [path.stat().st_size for path in (tmp_path / "a").glob("workers.log*")]
    assert len(sizes) == 2 and 2**23 < sum(sizes) <= 2**24


# Saved and resumed


@pytest.mark.slow
def test_more_patience_lets_a_run_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "FIRST_BACK_OFF", 0.01)
    monkeypatch.setattr(workers, "MAX_FAULTS", 1)
    cfg = actor_config(tmp_path, "VerySlowReset", seeds=[0], actors="local:1", env={"hang_seconds": 1.0})
    cfg = merge(cfg, {"total_steps": 120, "eval": {"every_steps": 10**9}})
    with pytest.raises(NobodyLeft, match=r"raise env.hang_seconds") as refused:
        list(train(cfg))
    assert f"t3d resume {tmp_path / 'a'}" in refused.value.__notes__[0]
    again = list(resume(tmp_path / "a", hang_seconds=20.0))
    assert of_kind(again, End)[0].reason == "finished" and not of_kind(again, ActorEvent)


@pytest.mark.parametrize(
    "actors", [None, pytest.param("local:1", marks=pytest.mark.slow), pytest.param("local:4", marks=pytest.mark.slow)]
)
def test_a_run_with_actors_goes_on(tmp_path: Path, memories: list[Memory], actors: str | None) -> None:
    """Nothing that was counted is lost; episodes in flight are given up, and their numbers are not used again."""
    cfg = actor_config(tmp_path, total_steps=4000, updates_per_step=0.1, log={"every_steps": 20})
    cfg = merge(cfg, {"env": {"num_envs": 2}})
    first = stopped_at(cfg, 500)
    step = of_kind(first, Saved)[-1].step
    assert 300 <= step < 4000 and of_kind(first, End)[0].reason == "stopped"
    rows = [memories[0].replay.contents(member, 0, memories[0].added[member])["rows"] for member in range(2)]
    again = list(resume(tmp_path / "a", actors=actors))
    assert of_kind(again, Resumed)[0].step == step and of_kind(again, End)[0].reason == "finished"
    assert of_kind(again, ActingEvent)[-1].actors == int((actors or cfg.actors)[-1])
    for member in range(2):
        assert np.array_equal(memories[1].replay.contents(member, 0, len(rows[member]))["rows"], rows[member])
    check_rows(memories[1], cfg, crashes=4)
    assert of_kind(again, End)[0].updates == 390
    assert of_kind(again, ActingEvent)[-1].since == step, "the summary says where this process began"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with actors and one without, stopped on their way."""
    roots = {actors: tmp_path_factory.mktemp("stopped") for actors in ("local:2", "inline")}
    for actors, root in roots.items():
        stopped_at(actor_config(root, total_steps=9000, actors=actors, log={"every_steps": 20}), 200)
    return {actors: root / "a" for actors, root in roots.items()}


@pytest.mark.parametrize(
    ("begun", "actors", "words"),
    [
        ("local:2", "local:3", "actors=local:3, and the run was started with 2 environments; use local:2 or fewer"),
        ("local:2", "inline", "started with actors=local:2 and cannot continue with inline"),
        ("inline", "local:2", "started with actors=inline and cannot continue with local:2"),
        ("local:2", "locals:2", "not inline, local:N or ray:N"),
    ],
)
def test_actors_that_a_run_cannot_go_on_with(stopped: dict[str, Path], begun: str, actors: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        list(resume(stopped[begun], actors=actors))


@pytest.mark.system
def test_the_command_that_began_a_run_may_say_another_number_of_actors(tmp_path: Path) -> None:
    cfg = actor_config(tmp_path, seeds=[0], actors="local:3", total_steps=3000, log={"every_steps": 20})
    cfg = merge(cfg, {"updates_per_step": 0.1})
    stopped_at(cfg, 200)
    stopped_at(merge(cfg, {"actors": "local:2"}), 400)
    with pytest.raises(UserError, match="started with 3 environments; use local:3 or fewer"):
        list(resume(tmp_path / "a", cfg=merge(cfg, {"actors": "local:4"})))
    events = list(resume(tmp_path / "a", cfg=cfg))
    assert of_kind(events, End)[0].reason == "finished" and of_kind(events, ActingEvent)[-1].actors == 3


@pytest.mark.system
def test_resume_takes_another_number_of_actors_as_a_command(tmp_path: Path) -> None:
    stopped_at(actor_config(tmp_path, total_steps=2000, log={"every_steps": 20}, updates_per_step=0.1), 200)
    assert main(["resume", str(tmp_path / "a"), "--actors", "local:1", "--no-video"]) == 0
    assert load_toml(tmp_path / "a" / "config.toml")["actors"] == "local:1"


def test_evaluations_under_way_are_saved_and_made_after_a_resume(tmp_path: Path) -> None:
    cfg = actor_config(tmp_path, "Slow", seeds=[0], total_steps=240, eval={"every_steps": 120, "episodes": 30})
    first = stopped_at(cfg, 140)
    again = list(resume(tmp_path / "a"))
    resumed, evals = of_kind(again, Resumed)[0], of_kind(again, Eval)
    assert [event.step // 120 for event in [*of_kind(first, Eval), *evals]] == [0, 1, 2], "each once"
    late = [event for event in evals if event.step < resumed.step]
    assert late, "that of step 120 takes two seconds"
    assert all(event.updates == max(0, event.step - 100) for event in late), "the policy of then, not of now"


COMMAND = """train actor_worlds:Family --device cpu --actors local:2 --seeds 0 --run.name held --resume-or-start
    --no-video --td3.actor-hidden 16 --td3.critic-hidden 16 --td3.batch-size 16 --random-steps 200
    --updates-per-step 0.1 --total-steps 1000000000 --eval.every-steps 500 --checkpoint.every-steps 100"""


def family_of(process: subprocess.Popen[Any]) -> list[psutil.Process]:
    me = psutil.Process(process.pid)
    return [me, *me.children(recursive=True)]


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm"))  # noqa: PTH208


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A run whose environments have simulators of their own."""
    (folder / "fault").touch()  # they do not hang
    told = {"SLEEP": helpers.SLEEP, "FAULT_FILE": str(folder / "fault")}
    surroundings = {
        **os.environ,
        **told,
        "PYTHONPATH": os.pathsep.join([str(Path(helpers.__file__).parent), *sys.path]),
    }
    command = [sys.executable, "-m", "t3d", *COMMAND.split()]
    return subprocess.Popen(command, cwd=folder, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def wait_until(true: Any, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it never happened"
        time.sleep(0.01)


def newest_step(folder: Path) -> int:
    steps = [int(path.name.rpartition("-")[2]) for path in (folder / "runs/held/checkpoints").glob("0*-step-*[0-9]")]
    return max(steps, default=0)


def has_gone_on(folder: Path, beyond: int) -> bool:
    return newest_step(folder) > beyond


def all_gone(family: list[psutil.Process]) -> bool:
    return not any(member.is_running() and member.status() != psutil.STATUS_ZOMBIE for member in family)


def kill_the_tree_and_resume(folder: Path, kills: int) -> None:
    """R2: no process and no shared memory stays behind, and the same command goes on by itself.

    By turns the whole family is killed and the parent alone, with whom the others have to end.
    """
    before, reached = shared_memory(), 0
    for kill, delay in enumerate(np.random.default_rng(kills).uniform(0, 0.6, kills)):
        with started(folder) as process:
            wait_until(partial(has_gone_on, folder, reached))
            time.sleep(delay)
            family = family_of(process)
            assert len(family) >= 3, "two actors at least"
            for member in family[:1] if kill % 2 else family:
                with contextlib.suppress(psutil.NoSuchProcess):  # it ended with another
                    member.kill()
            process.wait(10)
        reached = newest_step(folder)
        wait_until(partial(all_gone, family), 5)
        assert helpers.simulators() == []
    assert shared_memory() == before
    with started(folder) as process:
        wait_until(partial(has_gone_on, folder, reached))
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM and b"resuming at step" in out, out.decode()


@pytest.mark.system
def test_a_killed_family_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    kill_the_tree_and_resume(tmp_path, kills=2)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_fifty_killed_families_leave_nothing_and_go_on(tmp_path: Path) -> None:
    for trial in range(5):
        (tmp_path / str(trial)).mkdir()
        kill_the_tree_and_resume(tmp_path / str(trial), kills=10)


@pytest.mark.system
@pytest.mark.parametrize("phase", [pytest.param("start-up", marks=pytest.mark.slow), "running"])
def test_a_signal_ends_the_whole_family_in_time(tmp_path: Path, phase: str) -> None:
    with started(tmp_path) as process:
        held = tmp_path / "runs/held/config.toml"
        wait_until(lambda: held.exists() and (phase == "start-up" or newest_step(tmp_path) > 200))
        family, sent = family_of(process), time.monotonic()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
        assert time.monotonic() - sent < 5 and process.returncode == 128 + signal.SIGTERM
    assert b"t3d resume runs/held" in out and b"Traceback" not in out
    wait_until(partial(all_gone, family), 2)


# Settings


def test_a_ladder_of_noise() -> None:
    assert [scale_factor(index, 5) for index in range(5)] == pytest.approx([0.25, 0.5, 1, 2, 4]) and scale_factor(
        0, 1
    ) == 1
    changes: dict[str, Any] = {"env": {"num_envs": 3}, "random_steps": 0, "total_steps": 9000}
    cfg = helpers.small_config(**changes, noise={"exploration_noise": 0.04, "per_env": True})
    collector = InlineCollector(cfg, actor_worlds.Told)
    snapshot = snapshot_for(collector.spec, 1)
    snapshot.flat[:] = 0
    collector.publish(snapshot)
    actions = np.array([collector.poll().rollouts[0].a[:, 0] for _ in range(3000)])
    assert actions.std(axis=0) == pytest.approx([0.01, 0.04, 0.16], rel=0.1)


def test_flags_of_actors() -> None:
    cfg = parse(["Pendulum-v1", "--actors", "local:4", "--max-ahead", "7", "--noise.per-env"]).cfg
    assert (cfg.actors, cfg.async_actors, cfg.max_ahead, cfg.noise.per_env) == ("local:4", 4, 7, True)
    with pytest.raises(UserError, match="a ladder over the environments of a seed, and each seed has one"):
        next(train(merge(cfg, {"seeds": [0, 1, 2, 3]})))
    with pytest.raises(UserError, match=r"--noise is --noise.kind here"):
        parse(["Pendulum-v1", "--noise", "purple"])


@pytest.mark.parametrize(
    "actors", ["local", "local:", "local:0", "local:-1", "local:x", "ray:0", "ray", "local:99999", ""]
)
def test_actors_that_cannot_be(actors: str) -> None:
    with pytest.raises(UserError, match="is not inline, local:N or ray:N with N from 1 to 1024"):
        Config(actors=actors)


def test_environments_are_spread_evenly() -> None:
    cfg = merge(Config(), {"actors": "local:3", "seeds": [0, 1], "env": {"num_envs": 4}})
    assert [len(units) for units in shares(cfg, as_one=False)] == [3, 3, 2]
    assert sorted(unit for units in shares(cfg, as_one=False) for unit in units) == [
        ((member, env),) for member in range(2) for env in range(4)
    ]
    assert shares(merge(cfg, {"actors": "local:2"}), as_one=True) == [
        [((0, 0), (0, 1), (0, 2), (0, 3))],
        [((1, 0), (1, 1), (1, 2), (1, 3))],
    ]
    with pytest.raises(UserError, match="there is work for only 2: a VectorEnv is stepped by one actor"):
        shares(cfg, as_one=True)
    with pytest.raises(UserError, match=r"there is work for only 8: set --env.num-envs 8, or use fewer actors"):
        shares(merge(cfg, {"actors": "local:16"}), as_one=False)


@pytest.mark.parametrize(("seeds", "actors", "per_member"), [(10, 13, 1.25), (10, 15, 1.5), (2, 3, 1.5), (3, 4, 4 / 3)])
def test_no_members_are_left_to_few_actors(seeds: int, actors: int, per_member: float) -> None:
    """All members wait for the slowest: any group has so many actors a member (dealing reaches 1.25 of 1.3)."""
    cfg = merge(Config(), {"actors": f"local:{actors}", "seeds": list(range(seeds))})
    members_of = [{member for unit in units for member, _ in unit} for units in shares(cfg, as_one=False)]
    groups = [set(group) for size in range(1, seeds + 1) for group in combinations(range(seeds), size)]
    assert min(sum(bool(group & them) for them in members_of) / len(group) for group in groups) >= per_member


def test_more_actors_than_seeds_bring_environments_of_their_own(tmp_path: Path) -> None:
    events = list(train(actor_config(tmp_path, seeds=[0], actors="local:2")))
    config = merge(Config(), events[0].config)  # type: ignore[attr-defined]
    assert config.num_envs == 2 and of_kind(events, ActingEvent)[-1].actors == 2


def test_one_environment_that_was_asked_for_stays_one(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is work for only 1: set --env.num-envs 3, or use fewer actors"):
        next(train(actor_config(tmp_path, seeds=[0], actors="local:3", env={"num_envs": 1})))
    events = list(train(actor_config(tmp_path, seeds=[0, 1], actors="local:2", env={"num_envs": 1})))
    assert {event.env for event in of_kind(events, EpisodeEnd)} == {0}


@pytest.mark.parametrize(
    "edited", [False, pytest.param(True, marks=pytest.mark.system)], ids=["by the command", "in config.toml"]
)
def test_fewer_actors_keep_the_environments_of_the_run(tmp_path: Path, edited: bool) -> None:
    stopped_at(actor_config(tmp_path, seeds=[0], actors="local:3", total_steps=3000, log={"every_steps": 20}), 400)
    path = tmp_path / "a"
    if edited:
        toml = path / "config.toml"
        toml.write_text(toml.read_text().replace('"local:3"', '"local:2"'))
    events = list(resume(path, actors=None if edited else "local:2"))
    assert merge(Config(), of_kind(events, Resumed)[0].config).num_envs == 3
    assert of_kind(events, ActingEvent)[-1].actors == 2
    assert list(resume(path, actors="local:1", total_steps=3200)), "and again, from what the second one wrote"


def test_a_factory_that_another_process_cannot_import_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="actor processes cannot import make_env"):
        next(train(actor_config(tmp_path), make_env=lambda: actor_worlds.Told()))  # noqa: PLW0108


# Long trials


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_learning_through_crashes(tmp_path: Path) -> None:
    """R10, three seeds: two of three actors crash now and then; the return is as without."""
    plain, fragile = "Pendulum-v1", "actor_worlds:FragilePendulum"
    last: dict[str, list[float]] = {plain: [], fragile: []}
    crashes = 0
    for seed, world in product(range(3), last):
        changes: dict[str, Any] = {"env": {"id": world, "num_envs": 3}, "seeds": [seed], "actors": "local:3"}
        cfg = merge(parse(["--preset", "quick"]).cfg, {**changes, "run": {"root": str(tmp_path)}})
        events = list(train(cfg))
        last[world].append(max(event.mean_return for event in of_kind(events, Eval)[-3:]))
        crashes += sum(event.what == "lost" for event in of_kind(events, ActorEvent))
    assert crashes >= 2, "ten are to be expected"
    assert min(last[plain] + last[fragile]) > -250, "all have learned to swing up"
    assert abs(np.mean(last[fragile]) - np.mean(last[plain])) < 100, "and equally well"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sixteen_actors_collect_fourteen_times_as_fast_as_one(tmp_path: Path) -> None:
    rates = {}
    for actors in (1, 16):
        changes: dict[str, Any] = {"actors": f"local:{actors}", "seeds": [0], "total_steps": 2000 * actors}
        cfg = actor_config(tmp_path, "Slow", **changes, updates_per_step=0.0, run={"name": str(actors)})
        collector = unstarted(merge(cfg, {"env": {"num_envs": actors}}))
        try:
            publish_zeros(collector)
            rates[actors] = rate_of(collector, seconds=10)
        finally:
            collector.close()
    assert rates[16] / rates[1] >= 14, rates


@pytest.mark.slow
def test_fifteen_actors_do_the_work_of_fifteen_for_ten_seeds(tmp_path: Path) -> None:
    rates = {}
    for actors in (10, 15):
        td3 = {"batch_size": 8, "actor_hidden": [8], "critic_hidden": [8]}
        changes: dict[str, Any] = {"actors": f"local:{actors}", "seeds": list(range(10)), "total_steps": 1500}
        cfg = actor_config(tmp_path, "Slow", **changes, td3=td3, log={"every_steps": 200}, run={"name": str(actors)})
        _, first, *_, last, _ = of_kind(list(train(cfg)), ActingEvent)
        rates[actors] = (last.step - first.step) / (last.time - first.time)
    assert rates[15] / rates[10] >= 1.4, rates


def rate_of(collector: LocalCollector, seconds: float) -> float:
    """Transitions a second, once every actor works."""
    while not all(slot.delivered for slot in collector.slots):
        collector.poll()
    begun, taken = time.monotonic(), collector.inbox.taken[0]
    while time.monotonic() < begun + seconds:
        collector.poll()
    return (collector.inbox.taken[0] - taken) / (time.monotonic() - begun)
