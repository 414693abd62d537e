"""R6: a run that was killed and resumed equals one that was not, to the last bit."""

from __future__ import annotations

import errno
import json
import shutil
import threading
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import helpers
import t3d
from run_folders import assert_equal
from t3d.actors.inline import InlineCollector
from t3d.actors.protocols import Collected
from t3d.algo.learner import Learner
from t3d.config import Config, merge
from t3d.errors import NothingLeft, StoppedEarly, UserError
from t3d.events import End, EpisodeEnd, Resumed, Saved, Start
from t3d.run import live
from t3d.run.resume import load
from t3d.store.checkpoint import Checkpoint
from t3d.store.folder import versions
from t3d.store.summary import read_summary
from t3d.world.evaluate import MemberEvaluator


def small(root: Path, name: str, **changes: Any) -> Config:
    """On Pendulum, whose episodes have 200 steps: 100 random steps, then updates, a checkpoint every 60 steps."""
    cfg = helpers.small_config(checkpoint={"every_steps": 60}, run={"root": str(root), "name": name})
    return merge(cfg, changes)


def broken_off(monkeypatch: pytest.MonkeyPatch, cfg: Config, step: int, *, kill: bool, **keywords: Any) -> Path:
    """The folder that a run leaves which is killed, or asked to stop, as soon as it has taken so many steps."""
    stop, poll = threading.Event(), InlineCollector.poll
    path = Path(cfg.run.root) / cfg.run.name

    def poll_and_end(self: InlineCollector) -> Collected:
        collected = poll(self)
        if self.member_actors[0].taken >= step and not stop.is_set():
            stop.set()
            if kill:
                shutil.copytree(path, path.with_name("killed"))  # what is on the disk in the middle of the run
        return collected

    with monkeypatch.context() as patched:
        patched.setattr(InlineCollector, "poll", poll_and_end)
        list(t3d.train(cfg, stop=stop, **keywords))
    return path.with_name("killed") if kill else path


SPLITS: dict[str, tuple[int, dict[str, Any]]] = {
    "in the warm-up": (70, {}),
    "before the first checkpoint": (40, {}),
    "inside the first episode": (130, {}),
    "inside the second episode": (250, {}),
    "between delayed updates": (123, {"checkpoint": {"every_steps": 121}}),
    "between reports": (155, {"log": {"every_steps": 20}, "checkpoint": {"every_steps": 153}}),
    "two members": (200, {"seeds": [3, 0]}),
    "three environments": (150, {"env": {"num_envs": 3}}),
    "several members and environments, normalised": (
        160,
        {"seeds": [1, 2], "env": {"num_envs": 2}, "normalise_observations": True, "updates_per_step": 0.3},
    ),
    "changes of actions limited": (170, {"env": {"num_envs": 2, "max_action_change": 0.1}}),
    "normalised, between updates": (
        163,
        {"normalise_observations": True, "updates_per_step": 0.3, "checkpoint": {"every_steps": 162}},
    ),
    "scaled rewards, several members and environments": (
        160,
        {"seeds": [1, 2], "env": {"num_envs": 2}, "scale_rewards": True, "updates_per_step": 0.3},
    ),
    "scaled rewards, inside the second episode": (250, {"scale_rewards": True, "replay": {"capacity": 90}}),
    "with a report due": (
        157,
        {"updates_per_step": 0.1, "log": {"every_steps": 50}, "checkpoint": {"every_steps": 155}},
    ),
    "ring wrapped": (250, {"replay": {"capacity": 90}}),
    "pink noise": (190, {"noise": {"kind": "pink"}}),
    "drifting noise": (190, {"noise": {"kind": "ou"}}),
    "proportional sampling, two members, three environments, ring wrapped": (
        190,
        {
            "seeds": [3, 0],
            "env": {"num_envs": 3},
            "replay": {"sampling": "proportional", "importance_updates": 150, "capacity": 120},
        },
    ),
    "loss-adjusted sampling, three steps": (
        290,  # the highest priority has been found anew
        {"replay": {"sampling": "lap", "n_step": 3}, "td3": {"critic_loss": "huber"}},
    ),
    "categorical critics": (190, {"td3": {"critic_loss": "categorical"}, "scale_rewards": True, "seeds": [0, 1]}),
    "categorical critics whose targets are out of reach": (
        190,  # which is said once
        {"td3": {"critic_loss": "categorical", "value_low": 5, "value_high": 6}},
    ),
    "two random critics and a schedule": (
        190,
        {"td3": {"critics": 3, "aggregate": "min_of_random_2", "lr_schedule": "cosine", "lr_updates": 150}},
    ),
    "many updates a step, late policy": (140, {"updates_per_step": 2.5, "td3": {"policy_delay": 3}}),
}


@pytest.mark.parametrize("split_at", SPLITS)
def test_a_resumed_run_equals_a_straight_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split_at: str) -> None:
    """Whether it was killed or asked to stop."""
    step, changes = SPLITS[split_at]
    list(t3d.train(small(tmp_path, "straight", **changes)))
    killed = broken_off(monkeypatch, small(tmp_path, "stopped", **changes), step, kill=True)
    for broken in (killed, tmp_path / "stopped"):
        resumed = next(event for event in list(t3d.resume(broken)) if isinstance(event, Resumed))
        assert_equal(tmp_path / "straight", broken)
        if broken != killed:
            assert step <= resumed.step < step + 3 and not resumed.notes
        elif step < 60:
            assert (resumed.step, resumed.checkpoint) == (0, "") and "starts at step 0" in resumed.notes[-1]
        else:
            assert step - 62 <= resumed.step <= step and [note for note in resumed.notes if "lock" not in note] == []


@pytest.mark.parametrize("sampling", ["uniform", "proportional"])
def test_a_replay_that_fits_only_elsewhere_now_draws_other_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sampling: str
) -> None:
    """A GPU whose memory others use has no room for it, and its random streams cannot go on in host memory."""

    def on_a_gpu(checkpoint: Checkpoint) -> Any:
        saved = state(checkpoint)
        saved["memory"]["device"], saved["memory"]["sampler"]["streams"] = "cuda", {"drawn": 7}
        return saved

    broken_off(monkeypatch, small(tmp_path, "stopped", replay={"sampling": sampling}), 190, kill=False)
    state = Checkpoint.state
    monkeypatch.setattr(Checkpoint, "state", on_a_gpu)
    resumed, *_, end = t3d.resume(tmp_path / "stopped")
    assert isinstance(resumed, Resumed) and isinstance(end, End) and end.reason == "finished"
    moved = "the replay was on the GPU and is in host memory now: other batches are drawn from here on"
    assert resumed.notes == [moved]


IN_THE_SECOND = (1130, {"total_steps": 1300, "checkpoint": {"every_steps": 1100}, "seeds": [0, 1]})


@pytest.mark.parametrize(
    "env_id", ["HalfCheetah-v5", pytest.param("HalfCheetahBulletEnv-v0", marks=pytest.mark.system)]
)
@pytest.mark.parametrize(
    ("step", "changes"),
    [
        pytest.param(130, {}, id="inside the first episode"),
        pytest.param(*IN_THE_SECOND, id="inside the second episode of two members", marks=pytest.mark.slow),
    ],
)
def test_simulators_go_on_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env_id: str, step: int, changes: dict[str, Any]
) -> None:
    pytest.importorskip("pybullet_envs_gymnasium" if "Bullet" in env_id else "mujoco")
    changes = {"env": {"id": env_id}, "eval": {"episodes": 1, "max_steps": 50}, **changes}
    list(t3d.train(small(tmp_path, "straight", **changes)))
    broken = broken_off(monkeypatch, small(tmp_path, "broken", **changes), step, kill=True)
    resumed = next(event for event in t3d.resume(broken) if isinstance(event, Resumed))
    assert resumed.step > 0 and [note for note in resumed.notes if "lock" not in note] == []
    list(t3d.resume(broken))
    assert_equal(tmp_path / "straight", broken)


@pytest.mark.parametrize("limit", [0, 0.1])
def test_a_vector_environment_goes_on_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float) -> None:
    def make() -> Any:
        limits = [9, 14, 23]  # so that episodes are of different lengths when the run is killed
        makers = [lambda limit=limit: gym.make("Pendulum-v1", max_episode_steps=limit) for limit in limits]
        return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)

    changes: dict[str, Any] = {"env": {"id": "", "num_envs": 3, "max_action_change": limit}}
    list(t3d.train(small(tmp_path, "straight", **changes), make_env=make))
    broken = broken_off(monkeypatch, small(tmp_path, "broken", **changes), 200, kill=True, make_env=make)
    events = list(t3d.resume(broken, make_env=make))
    assert isinstance(events[0], Resumed) and events[0].step == 180
    assert [note for note in events[0].notes if "lock" not in note] == []
    assert_equal(tmp_path / "straight", broken)


@pytest.mark.parametrize("which", [0, 3, 4], ids=["first", "in the middle", "last"])
def test_an_evaluation_that_was_broken_off_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int
) -> None:
    stop, begun, evaluate = threading.Event(), [], MemberEvaluator.evaluate

    def evaluate_and_stop(*arguments: Any) -> Any:
        begun.append(arguments)
        if len(begun) - 1 == which:
            stop.set()
        return evaluate(*arguments)

    changes = {"seeds": [0, 1]}  # two evaluations at steps 0, 150 and 300
    list(t3d.train(small(tmp_path, "straight", **changes)))
    with monkeypatch.context() as patched:
        patched.setattr("t3d.world.evaluate.MemberEvaluator.evaluate", evaluate_and_stop)
        end = list(t3d.train(small(tmp_path, "broken", **changes), stop=stop))[-1]
    assert isinstance(end, End) and end.reason == "stopped" and end.step == which // 2 * 150
    list(t3d.resume(tmp_path / "broken"))
    assert_equal(tmp_path / "straight", tmp_path / "broken")


def test_a_stop_in_the_middle_of_updates_that_are_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, update = threading.Event(), Learner.run

    def update_and_stop(self: Learner, *arguments: Any) -> Any:
        if self.updates == 37:
            stop.set()
        return update(self, *arguments)

    changes = {"updates_per_step": 30.0, "total_steps": 110}
    list(t3d.train(small(tmp_path, "straight", **changes)))
    with monkeypatch.context() as patched:
        helpers.replace_updates(patched, update_and_stop)
        end = list(t3d.train(small(tmp_path, "broken", **changes), stop=stop))[-1]
    assert isinstance(end, End) and end.updates % 30 != 0, "some of the updates of that step were left"
    list(t3d.resume(tmp_path / "broken"))
    assert_equal(tmp_path / "straight", tmp_path / "broken")


def test_a_longer_run_is_as_if_it_had_been_longer_from_the_beginning(tmp_path: Path) -> None:
    list(t3d.train(small(tmp_path, "long", eval={"every_steps": 100})))
    list(t3d.train(small(tmp_path, "short", total_steps=200, eval={"every_steps": 100})))
    with pytest.raises(NothingLeft, match="already finished its 200 steps; --total-steps N trains"):
        list(t3d.resume(tmp_path / "short"))
    for fewer in (150, 100):  # the second are all random steps
        with pytest.raises(NothingLeft, match=f"already at step 200, and {fewer} are asked for"):
            list(t3d.resume(tmp_path / "short", total_steps=fewer))
    list(t3d.resume(tmp_path / "short", total_steps=300))
    assert_equal(tmp_path / "long", tmp_path / "short", but=("config", "replay_bytes"))
    entry = read_summary(tmp_path / "short")
    assert (entry.status, entry.step, entry.total_steps) == ("finished", 300, 300)


def test_a_run_may_be_moved_and_go_on_several_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(t3d.train(small(tmp_path, "straight")))
    folder = broken_off(monkeypatch, small(tmp_path, "broken"), 70, kill=True)
    for step in (130, 200, 270):
        stop, moved = threading.Event(), folder.rename(tmp_path / f"moved-{step}")
        for event in t3d.resume(moved, stop=stop):
            if event.step >= step:
                stop.set()
        folder = moved
    list(t3d.resume(folder))
    assert_equal(tmp_path / "straight", folder)
    journal = [json.loads(line)["event"] for line in (folder / "journal.jsonl").read_text().splitlines()]
    assert journal.count("start") == 1 and journal.count("resumed") == 4 and journal[-1] == "end"


class Forgetful(gym.Wrapper[Any, Any, Any, Any]):
    """Ignores seeds, so no episode can be played again."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return self.env.reset()


def test_an_environment_that_does_not_repeat_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Any:
        return Forgetful(gym.make("Pendulum-v1"))

    broken = broken_off(monkeypatch, small(tmp_path, "broken"), 250, kill=True, make_env=make)
    events = list(t3d.resume(broken, make_env=make))
    assert isinstance(events[0], Resumed)
    assert "environment 0 of seed 0 did not repeat its episode 1: the next one starts" in events[0].notes[-1]
    end = events[-1]
    assert isinstance(end, End) and (end.reason, end.step) == ("finished", 300)
    assert {event.episode for event in events if isinstance(event, EpisodeEnd)} == set(), "episode 2 is still in flight"


def test_other_versions_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = broken_off(monkeypatch, small(tmp_path, "broken"), 150, kill=False)
    monkeypatch.setattr("t3d.run.parts.versions", lambda: {**versions(), "torch": "9.9"})
    resumed = next(t3d.resume(broken))
    assert isinstance(resumed, Resumed) and f"torch {versions()['torch']} is now 9.9" in resumed.notes[0]


def test_what_cannot_be_resumed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = small(tmp_path, "broken")
    broken = broken_off(monkeypatch, cfg, 150, kill=False)
    other = merge(cfg, {"td3": {"tau": 0.01}})
    with pytest.raises(UserError, match=r"started with td3.tau=0.005, and this command says 0.01"):
        list(t3d.resume(broken, cfg=other))
    with pytest.raises(UserError, match="3 observation values then, 2 now"):
        list(t3d.resume(broken, make_env=lambda: gym.make("MountainCarContinuous-v0")))
    with pytest.raises(UserError, match="is in use by this program"):
        going_on = live.resume(broken)
        next(going_on)
        going_on._turn.acquire()  # as in another thread
        next(t3d.resume(broken))
    going_on._turn.release()
    going_on.close()
    for file in (broken / "checkpoints").glob("*/state.json"):
        file.write_text("{}")
    with pytest.raises(UserError, match=r"cannot be resumed: checkpoint .*state.json: its content has changed"):
        list(t3d.resume(broken))
    before = (broken / "events.jsonl").read_text()
    assert before.splitlines()[0].startswith('{"event": "start"'), "and nothing was touched"
    first = next(t3d.resume(broken, cfg=cfg))
    assert isinstance(first, Start), "the command that began it begins it again"


def test_a_command_that_resumes_decides_what_is_watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cfg = small(tmp_path, "broken", record_every=3)
    broken = broken_off(monkeypatch, cfg, 150, kill=False)
    watched = {"record_every": 2, "sinks": ("tensorboard",), "log": {"diagnose_every_steps": 500}}
    for now in (merge(cfg, watched), merge(cfg, {"record_every": 0})):
        found = load(broken, {}, now)[0]
        assert (found.record_every, found.sinks, found.log) == (now.record_every, now.sinks, now.log)
    assert load(broken, {}, None)[0].record_every == 3


def test_a_checkpoint_costs_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last checkpoint of a run writes about as much as the second one did, however full the replay is."""
    monkeypatch.setattr("t3d.store.contents.SEGMENT_ROWS", 50)
    cfg = small(tmp_path, "long", total_steps=3000, checkpoint={"every_steps": 50}, eval={"every_steps": 10_000})
    cfg = merge(cfg, {"replay": {"capacity": 2000}, "updates_per_step": 0.01, "eval": {"episodes": 1}})
    saved = [event for event in t3d.train(cfg) if isinstance(event, Saved)]
    assert len(saved) == 60
    state = saved[0].new_bytes
    assert all(abs(event.new_bytes - saved[1].new_bytes) < 0.2 * state for event in saved[1:])
    kept = list((tmp_path / "long" / "checkpoints").iterdir())
    assert sorted(path.name for path in kept)[:-1] == [event.checkpoint for event in saved[-3:]]
    assert len(list((tmp_path / "long" / "checkpoints" / "replay").iterdir())) == 2000 // 50 + 2, "the rest is pruned"


def test_a_finished_run_without_checkpoints_is_not_begun_again_unasked(tmp_path: Path) -> None:
    cfg = small(tmp_path, "done")
    list(t3d.train(cfg))
    shutil.rmtree(tmp_path / "done" / "checkpoints")
    before = {path: path.read_bytes() for path in (tmp_path / "done").rglob("*") if path.is_file()}
    with pytest.raises(UserError, match="cannot be resumed: it holds a run but no checkpoint of it"):
        list(t3d.resume(tmp_path / "done"))
    assert all(path.read_bytes() == content for path, content in before.items() if path.name != "lock")
    first = list(t3d.resume(tmp_path / "done", cfg=cfg))[:3]
    assert isinstance(first[0], Start) and any(isinstance(event, Resumed) for event in first)
    kept = tmp_path / "done" / "before-1"
    assert (kept / "events.jsonl").read_bytes() == before[tmp_path / "done" / "events.jsonl"]
    assert (kept / "best" / "seed-0.safetensors").exists()


def test_a_disk_that_cannot_be_read_for_a_moment_does_not_restart_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = small(tmp_path, "run")
    broken = broken_off(monkeypatch, cfg, 150, kill=False)

    def stale(*_: Any, **__: Any) -> bytes:
        raise OSError(errno.ESTALE, "Stale file handle")

    with monkeypatch.context() as patched:
        patched.setattr("t3d.store.contents.read", stale)
        with pytest.raises(UserError, match=r"Stale file handle.* may work again later"):
            list(t3d.resume(broken, cfg=cfg))
    assert not (broken / "before-1").exists()
    assert next(t3d.resume(broken, cfg=cfg)).step == 150


def test_an_extension_is_remembered_when_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    list(t3d.train(small(tmp_path, "run", total_steps=200)))
    stop = threading.Event()
    for event in t3d.resume(tmp_path / "run", total_steps=300, stop=stop):
        if event.step > 200:
            shutil.copytree(tmp_path / "run", tmp_path / "killed")
            stop.set()
            break
    events = list(t3d.resume(tmp_path / "killed"))
    end = events[-1]
    assert isinstance(end, End) and (end.reason, end.step) == ("finished", 300)


def test_a_run_that_was_killed_before_it_could_say_that_it_has_ended_ends(tmp_path: Path) -> None:
    list(t3d.train(small(tmp_path, "run")))
    log = tmp_path / "run" / "events.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-1]))
    events = list(t3d.resume(tmp_path / "run"))
    assert [event.event for event in events] == ["resumed", "end"] or isinstance(events[-1], End)
    assert read_summary(tmp_path / "run").status == "finished"


def test_a_wish_to_save_in_an_evaluation_is_granted_and_the_evaluation_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, begun, evaluate = threading.Event(), [], MemberEvaluator.evaluate

    def evaluate_and_ask(*arguments: Any) -> Any:
        begun.append(arguments)
        if len(begun) == 2:
            save.set()
        return evaluate(*arguments)

    list(t3d.train(small(tmp_path, "straight")))
    with monkeypatch.context() as patched:
        patched.setattr("t3d.world.evaluate.MemberEvaluator.evaluate", evaluate_and_ask)
        events = list(t3d.train(small(tmp_path, "asked"), save=save))
    asked = [event for event in events if isinstance(event, Saved) and event.reason == "asked"]
    assert [event.step for event in asked] == [150] and len(begun) == 4
    assert_equal(tmp_path / "straight", tmp_path / "asked")


def test_a_stop_while_episodes_are_played_again_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = broken_off(monkeypatch, small(tmp_path, "broken"), 150, kill=False)
    before = {path: path.read_bytes() for path in broken.rglob("*") if path.is_file()}
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedEarly, match="the run is unchanged"):
        list(t3d.resume(broken, stop=stop))
    assert {path: path.read_bytes() for path in broken.rglob("*") if path.is_file()} == before


def test_an_episode_that_is_too_long_to_remember_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.world.episode.RECORDED_STEPS", 50)
    broken = broken_off(monkeypatch, small(tmp_path, "broken"), 150, kill=False)
    resumed, *events = t3d.resume(broken)
    assert isinstance(resumed, Resumed) and "has lost the first of 150 steps of its episode 0" in resumed.notes[0]
    assert isinstance(events[-1], End) and events[-1].reason == "finished"


def test_a_run_that_ended_on_a_bad_value_goes_on_with_another_handling(tmp_path: Path) -> None:
    class Fails(gym.Wrapper[Any, Any, Any, Any]):
        taken = 0

        def step(self, action: Any) -> Any:
            Fails.taken += 1
            observation, reward, *rest = self.env.step(action)
            return observation, float("nan") if Fails.taken % 1500 == 0 else reward, *rest

    def make() -> Any:
        return Fails(gym.make("Pendulum-v1"))

    with pytest.raises(UserError, match="reward is nan"):
        list(t3d.train(small(tmp_path, "run", total_steps=1300), make_env=make))
    end = list(t3d.resume(tmp_path / "run", bad_values="skip", make_env=make))[-1]
    assert isinstance(end, End) and end.reason == "finished"
