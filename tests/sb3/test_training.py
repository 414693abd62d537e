"""Stable-Baselines3's TD3 on our loop: what scripts do with it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import stable_baselines3
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import HerReplayBuffer
from stable_baselines3.td3.policies import MlpPolicy

import t3d
from run_folders import events_of
from t3d.app.cli import main
from t3d.errors import UserError
from t3d.events import End, EpisodeEnd, Eval, Note, Start
from t3d.sb3 import TD3
from their_models import Numbered, numbered, small, theirs

IMAGE = spaces.Box(0, 255, (40, 40, 2), np.uint8)
DICT = spaces.Dict({"b": spaces.Box(-1, 1, (2, 3)), "a": spaces.Discrete(4), "c": spaces.MultiBinary(3)})


def test_it_is_theirs_and_learns_on_our_engine() -> None:
    model = small()
    assert issubclass(type(model), stable_baselines3.TD3)
    assert model.learn(60) is model
    assert model._run.parts.cfg.engine == "fused"
    assert model._learner.updates == model._n_updates == 20
    evaluated: Any = evaluate_policy(model, Monitor(gym.make("Pendulum-v1")), n_eval_episodes=1)
    assert evaluated[0] < 0 == evaluated[1]


@pytest.mark.parametrize(
    ("arguments", "envs"),
    [
        ({}, 1),
        ({"train_freq": 3}, 1),
        ({"train_freq": 3, "gradient_steps": -1}, 2),
        ({"gradient_steps": 2}, 4),
        ({"train_freq": (2, "episode"), "gradient_steps": -1}, 1),
        ({"gradient_steps": 0}, 1),
    ],
)
def test_it_makes_as_many_updates_as_theirs(arguments: dict[str, Any], envs: int) -> None:
    counts = []
    for model in (small(numbered(envs), **arguments), theirs(numbered(envs), **arguments)):
        model.learn(50).learn(30, reset_num_timesteps=False)
        counts.append((model.num_timesteps, model._n_updates, model._episode_num, model.replay_buffer.pos))
    assert counts[0] == counts[1]


@pytest.mark.parametrize(
    ("starts", "steps", "updates"),
    [(4e1, 6e1, 20), (40, 59.5, 20), (-1, 60, 60), (float("inf"), np.int64(60), 0)],
    ids=str,
)
def test_steps_may_be_any_number(starts: Any, steps: Any, updates: int) -> None:
    for model in (small(learning_starts=starts), theirs(learning_starts=starts)):
        model.learn(steps)
        assert (model.num_timesteps, model._n_updates) == (60, updates)


def test_a_policy_delay_is_whole() -> None:
    model = small(policy_delay=2.0)
    model.learn(60)
    assert (model._run.parts.cfg.td3.policy_delay, model._learner.agent.actor_adam.steps) == (2, 10)
    with pytest.raises(UserError, match="policy_delay"):
        small(policy_delay=2.5)


class Reused(DummyVecEnv):
    """Returns the same array in every step."""

    given: Any = None

    def _obs_from_buf(self) -> Any:
        fresh: Any = super()._obs_from_buf()
        self.given = fresh if self.given is None else self.given
        self.given[:] = fresh
        return self.given


def test_observations_after_a_reset_are_new_even_in_the_same_array() -> None:
    model = small(Reused([lambda: Numbered(terminates=False)]))
    for steps in (45, 0):
        model.learn(steps)
        np.testing.assert_array_equal(model._collector._flat(model._last_obs), [[steps % 7, -(steps % 7)]])


def test_a_second_ctrl_c_does_not_wait() -> None:
    class Hangs(BaseCallback):
        def _on_step(self) -> bool:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("it has waited")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            small().learn(100, callback=Hangs())
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_their_modules_are_our_memory() -> None:
    model = small()
    model.learn(60)
    observed = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    with torch.no_grad():
        torchs = model.actor(torch.from_numpy(observed)).numpy()
    np.testing.assert_allclose(torchs, model._collector.act(observed), atol=1e-6)
    before, agent = model.policy.state_dict()["actor.mu.0.weight"].clone(), model._learner.agent
    model.learn(20, reset_num_timesteps=False)
    assert not torch.equal(before, model.policy.state_dict()["actor.mu.0.weight"])
    for name in ("actor", "actor_target", "critic", "critic_target"):
        numbers = sum(parameter.numel() for parameter in getattr(model, name).parameters())
        assert numbers == getattr(agent, name).flat.numel()
        for parameter in getattr(model, name).parameters():
            parameter.data.fill_(0.25)
        assert (getattr(agent, name).flat == 0.25).all(), name
    expected = torch.from_numpy(observed)
    s, a = torch.randn(1, 4, 3), torch.randn(1, 4, 1)
    critic = torch.stack([each.squeeze(-1) for each in model.critic(s[0], a[0])])
    torch.testing.assert_close(agent.critic(s, a)[0], critic)
    np.testing.assert_allclose(model._collector.act(observed), model.actor(expected).detach().numpy(), atol=1e-6)


@pytest.mark.parametrize("space", [DICT, spaces.Discrete(5), spaces.MultiDiscrete([3, 4])], ids=str)
def test_they_act_alike_on_any_observation(space: Any) -> None:
    model = small(numbered(2, space=space), "MultiInputPolicy" if space is DICT else "MlpPolicy")
    model.learn(60)
    observed = model.env.reset()
    theirs_says, _ = model.predict(observed)
    np.testing.assert_allclose(model.policy.unscale_action(model._collector.act(observed)), theirs_says, atol=1e-5)


def test_learning_in_pieces_is_learning() -> None:
    whole = small().learn(90)
    pieces = small().learn(30)
    for _ in range(60):
        pieces.learn(1, reset_num_timesteps=False)
    np.testing.assert_array_equal(whole._run.parts.snapshot().flat, pieces._run.parts.snapshot().flat)


def test_a_schedule_sets_the_learning_rates() -> None:
    seen = []

    class Rates(BaseCallback):
        def _on_step(self) -> bool:
            its: Any = self.model
            seen.append((its._learner.coefficients.actor_lr, its.actor.optimizer.param_groups[0]["lr"]))
            return True

    model = small(learning_rate=lambda left: 0.01 * left)
    model.learn(100, callback=Rates())
    assert seen[-1] == pytest.approx((0.01 * 0.01, 0.01 * 0.01))
    assert model._learner.coefficients.critic_lr == 0.0, "at its end"


def test_callbacks_see_what_theirs_see() -> None:
    seen: dict[str, list[Any]] = {}

    class Look(BaseCallback):
        def _on_step(self) -> bool:
            names = ("rewards", "infos", "dones", "new_obs", "actions", "buffer_actions")
            kind = "ours" if isinstance(self.model, TD3) else "theirs"
            seen.setdefault(kind, []).append([np.shape(self.locals[name]) for name in names])
            seen[kind].append((self.num_timesteps, self.n_calls, self.locals["dones"].tolist()))
            seen[kind].append(len(self.model.ep_info_buffer or ()))
            return self.n_calls < 70

    for model in (small(Numbered()), theirs(Numbered())):
        model.learn(100, callback=Look())
    assert seen["ours"] == seen["theirs"]
    assert small().learn(60, callback=lambda found, _: found["num_collected_steps"] < 100).num_timesteps == 60


@pytest.mark.parametrize("arguments", [{}, {"norm_reward": False}, {"norm_obs": False, "clip_reward": 1.5}], ids=str)
def test_batches_are_scaled_as_their_environment_is_now(arguments: dict[str, Any]) -> None:
    vec: Any = VecNormalize(numbered(2), clip_obs=1.5, **arguments)
    model = small(vec)
    model.learn(80)
    raw, scaled = model._memory.sampler.sample(), None
    s, r = raw.s[0].numpy().copy(), raw.r[0].numpy().copy()
    assert np.abs(s).max() > 2, "the replay holds what the environment returned"
    for _ in range(2):
        scaled = model._memory.prepare(raw._replace(s=torch.from_numpy(s[None]), r=torch.from_numpy(r[None])))
        np.testing.assert_allclose(scaled.s[0].numpy(), vec.normalize_obs(s), atol=1e-5)
        np.testing.assert_allclose(scaled.r[0].numpy(), vec.normalize_reward(r), atol=1e-5)
        model.learn(20, reset_num_timesteps=False)
    mean = model.replay_buffer.sample(200, env=vec).observations.numpy().mean()
    assert abs(mean) < 1


@pytest.mark.parametrize("image", [False, True])
def test_only_the_keys_that_are_normalised_are_scaled_and_clipped(image: bool) -> None:
    far = spaces.Box(-1000, 1000, (2,))
    parts: dict[str, Any] = {"a": far, "b": far, **({"c": spaces.Box(0, 255, (1, 36, 36), np.uint8)} if image else {})}
    vec = VecNormalize(numbered(2, space=spaces.Dict(parts)), norm_obs_keys=["a"], clip_obs=1.5)
    model = small(vec, "MultiInputPolicy", batch_size=8, learning_starts=20)
    model.learn(24)
    raw = model._memory.sampler.sample().s[0].clone()
    scaled = model._memory.prepare(model._memory.sampler.sample()._replace(s=raw[None])).s[0].numpy()
    raw, frames = raw.numpy(), (raw[:, 16:].numpy(), scaled[:, 16:])
    if image:
        np.testing.assert_array_equal(*frames)
        raw, scaled = (np.ascontiguousarray(rows[:, :16]).view(np.float32) for rows in (raw, scaled))
    expected = vec.normalize_obs({"a": raw[:, :2], "b": raw[:, 2:]})
    assert np.abs(raw[:, 2:]).max() > 10
    np.testing.assert_allclose(scaled, np.hstack([expected["a"], expected["b"]]), rtol=1e-5)


def test_each_reward_is_clipped_before_n_steps_add_them() -> None:
    vec = VecNormalize(numbered(1, terminates=False), norm_obs=False, clip_reward=1.0)
    model = small(vec, n_steps=3, gamma=1.0)
    model.learn(50)
    vec.training, vec.ret_rms.var = False, np.array(9.0)
    model.learn(6, reset_num_timesteps=False)
    summed = {int(step): reward for step, reward in zip(*drawn(model), strict=True)}
    each = [min(reward / 3, 1.0) for reward in range(1, 8)]
    expected = {step: sum(each[step : step + 3]) for step in range(7)}
    assert summed == pytest.approx(expected, abs=1e-4)


def drawn(model: Any) -> tuple[list[float], list[float]]:
    """First numbers of observations, and rewards, of many batches."""
    observed, rewards = [], []
    for _ in range(30):
        batch = model._memory.sample()
        observed += batch.s[0, :, 0].tolist()
        rewards += batch.r[0].tolist()
    return observed, rewards


def test_environments_in_processes(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import gymnasium as gym\nfrom stable_baselines3.common.vec_env import SubprocVecEnv\nfrom t3d.sb3 import TD3\n"
        "if __name__ == '__main__':\n    env = SubprocVecEnv([lambda: gym.make('Pendulum-v1')] * 2, 'fork')\n"
        "    model = TD3('MlpPolicy', env, learning_starts=20, batch_size=8, policy_kwargs={'net_arch': [8]})\n"
        "    print(model.learn(60).num_timesteps, model._n_updates)\n    env.close()\n",
        encoding="utf-8",
    )
    done = subprocess.run([sys.executable, str(script)], check=False, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["60", "20"], done.stderr


def test_images() -> None:
    model = small(numbered(1, space=IMAGE), "CnnPolicy", learning_starts=20)
    model.learn(24)
    before = model._learner.agent.policy.flat.clone()
    model.learn(4, reset_num_timesteps=False)
    assert not torch.equal(before, model.actor.flat), "actor and encoder are our memory"
    observed = model.env.reset()
    expected = model.policy.unscale_action(model._collector.act(observed))
    np.testing.assert_allclose(model.predict(observed)[0], expected, atol=1e-6)
    with pytest.raises(UserError, match="keeps frames once"):
        model.replay_buffer.observations  # noqa: B018


def test_the_replay_is_read_and_added_to() -> None:
    model = small(numbered(2, terminates=False))
    model.learn(60)
    buffer, reference = model.replay_buffer, theirs(numbered(2, terminates=False))
    reference.learn(60)
    assert isinstance(buffer, type(reference.replay_buffer)) and buffer.size() == reference.replay_buffer.size() == 30
    for name in ("observations", "next_observations", "rewards", "dones", "timeouts"):
        expected = getattr(reference.replay_buffer, name)[:30]
        np.testing.assert_array_equal(getattr(buffer, name), expected, err_msg=name)
    buffer.rewards[3, 1] = 77.0
    assert model._memory.replay.rows[0, 7, 3] == 77.0, "on a CPU it is the memory itself"
    infos = [{"TimeLimit.truncated": True}, {}]
    two = np.ones((2, 2), np.float32)
    buffer.add(
        two, 2 * two, np.array([[0.5], [-0.5]], np.float32), np.array([5, 6], np.float32), np.array([True, True]), infos
    )
    assert (buffer.pos, buffer.timeouts[-1].tolist(), buffer.dones[-1].tolist()) == (31, [1, 0], [1, 1])
    assert model._memory.collected(0) == 60, "they are no steps of the run"
    drawn = buffer.sample(500)
    assert drawn.rewards.max() == 77 and set(np.unique(drawn.dones)) == {0, 1}
    model.learn(1200)
    assert buffer.full and buffer.observations.shape == (250, 2, 2)


def test_a_replay_of_dicts_has_arrays_by_name() -> None:
    model = small(numbered(2, space=DICT), "MultiInputPolicy")
    model.learn(20)
    arrays = model.replay_buffer.observations
    assert {name: array.shape for name, array in arrays.items()} == {
        "a": (10, 2, 4),
        "b": (10, 2, 2, 3),
        "c": (10, 2, 3),
    }
    assert (arrays["a"].sum(axis=-1) == 1).all(), "choices are one-hot"
    assert model.replay_buffer.sample(7).next_observations["b"].shape == (7, 2, 3)


def test_a_run_folder_serves_our_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folders, models = [], []  # a model that is collected ends its run
    for seed in (1, 2):
        model = small(Monitor(Numbered()), seed=seed, run_folder=tmp_path / f"run-{seed}")
        models.append(model)
        callback = EvalCallback(Monitor(Numbered()), eval_freq=30, n_eval_episodes=2, verbose=0)
        model.learn(90, callback=[callback, CheckpointCallback(50, str(tmp_path / "theirs"))])
        assert list(model.run_folder.glob("evaluations-*.npz")), "it had no log_path"
        folders.append(str(model.run_folder))
    events = events_of(tmp_path / "run-1")
    evaluations = [event for event in events if isinstance(event, Eval)]
    assert [(event.step, event.mean_return, event.metrics["success"]) for event in evaluations] == [
        (step, 28.0, 1.0) for step in (30, 60, 90)
    ]
    ended = [event for event in events if isinstance(event, EpisodeEnd)]
    assert [event.total_reward for event in ended] == [28.0] * 12
    assert isinstance(events[0], Start) and events[0].config["total_steps"] == 90
    assert not [event for event in events if isinstance(event, End)], "it may learn on"
    for command in (["plot", *folders], ["compare", *folders], ["runs", "show", folders[0]], ["export", folders[0]]):
        code = main(command)
        assert code in (0, None), (command, capsys.readouterr())
    policy = t3d.load_policy(tmp_path / "run-2" / "last" / "seed-2.safetensors")
    observed = np.array([3, -3], np.float32)
    np.testing.assert_allclose(policy(observed), model.predict(observed)[0], atol=1e-5)


def test_an_eval_callback_may_serve_a_second_model() -> None:
    callback = EvalCallback(Monitor(gym.make("Pendulum-v1")), eval_freq=45, n_eval_episodes=1, verbose=0)
    for seed in (0, 1):
        model = small(seed=seed)
        model.learn(50, callback=callback)
        evaluations = [event for event in events_of(model.run_folder) if isinstance(event, Eval)]
        assert callback.log_path is None and len(evaluations) == 1 and callback.best_mean_reward < 0
        del model
        gc.collect()


@pytest.mark.parametrize("train_freq", [200, (1, "episode")], ids=str)
def test_every_evaluation_of_a_rollout_is_recorded_at_its_step(train_freq: Any) -> None:
    callback = EvalCallback(Monitor(gym.make("Pendulum-v1")), eval_freq=50, n_eval_episodes=1, verbose=0)
    model = small(train_freq=train_freq)
    model.learn(200, callback=callback).learn(200, callback=callback)
    evaluations = [event for event in events_of(model.run_folder) if isinstance(event, Eval)]
    assert [event.step for event in evaluations] == [*range(50, 401, 50)]
    returns = [float(np.mean(results)) for results in callback.evaluations_results]
    assert [event.mean_return for event in evaluations] == pytest.approx(returns)


def test_a_temporary_folder_goes_with_the_model() -> None:
    model = small()
    assert not model.run_folder
    model.learn(50, callback=EvalCallback(Monitor(Numbered(spaces.Box(-1, 1, (3,)))), eval_freq=45, verbose=0))
    folder, alive = model.run_folder, weakref.ref(model)
    assert folder.exists()
    del model
    gc.collect()
    assert alive() is None and not folder.exists()


def test_a_forked_child_leaves_the_folder_alone(tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(
        "import os\nfrom their_models import small\nmodel = small()\nmodel.learn(1)\nprocess = os.fork()\n"
        "if process:\n    os.waitpid(process, 0)\n    print(model.run_folder.exists(), model.run_folder)\n",
        encoding="utf-8",
    )
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=found, check=False, capture_output=True, text=True, timeout=120)
    existed, folder = done.stdout.split()
    assert existed == "True" and not Path(folder).exists(), done.stderr


def test_no_exploration_is_noted() -> None:
    model = small(action_noise=None)
    model.learn(1)
    notes = [event.text for event in events_of(model.run_folder) if isinstance(event, Note)]
    assert any("action_noise=None" in text for text in notes)


def test_ctrl_c_waits_for_a_consistent_state_and_learning_goes_on() -> None:
    class Press(BaseCallback):
        def _on_rollout_end(self) -> None:
            if self.n_calls == 50:
                os.kill(os.getpid(), signal.SIGINT)

        def _on_step(self) -> bool:
            return True

    model, before = small(), signal.signal(signal.SIGINT, signal.default_int_handler)  # it may have been ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            model.learn(100, callback=Press())
    finally:
        signal.signal(signal.SIGINT, before)
    assert model.num_timesteps == 50
    assert model.learn(20, reset_num_timesteps=False).num_timesteps == 70
    assert model._memory.collected(0) in (69, 70)


def test_what_an_environment_raises_ends_no_run() -> None:
    class Breaks(Numbered):
        def step(self, action: Any) -> Any:
            if breaks and self.steps == 5:
                raise OSError("the arm is stuck")
            return super().step(action)

    breaks = False
    model = small(Breaks())
    model.learn(60)
    breaks = True
    with pytest.raises(OSError, match="the arm is stuck"):
        model.learn(60)
    breaks = False
    assert model.learn(60).num_timesteps == 60


class OwnPolicy(MlpPolicy):
    pass


class OwnTraining(TD3):
    def train(self, gradient_steps: int, batch_size: int = 0) -> None: ...


@pytest.mark.parametrize(
    "arguments",
    [
        {"policy": OwnPolicy},
        {"kind": OwnTraining},
        {"policy_kwargs": {"activation_fn": torch.nn.GELU}},
        {"policy_kwargs": {"optimizer_class": torch.optim.SGD}},
        {"policy_kwargs": {"optimizer_kwargs": {"weight_decay": 0.1}}},
        {"replay_buffer_class": HerReplayBuffer},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
def test_what_only_theirs_can_do_is_a_sentence(arguments: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"stable_baselines3\.TD3"):
        small(**arguments)


def test_nothing_is_learned_from_an_empty_replay() -> None:
    model = small()
    model.learn(0)
    with pytest.raises(UserError, match="the replay is empty"):
        model.train(3)
    model.learn(60).replay_buffer.reset()
    with pytest.raises(UserError, match="the replay is empty"):
        model.train(3)


def test_a_policy_or_replay_of_another_model_is_refused() -> None:
    model, other = small(), small(seed=1)
    for name in ("policy", "replay_buffer"):
        with pytest.raises(UserError, match=f"{name} of a model cannot be replaced"):
            setattr(model, name, getattr(other, name))
        setattr(model, name, getattr(model, name))
    assert model.learn(60).policy is not other.policy


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"replay_buffer_kwargs": {"nonsense": 1}}, r"nonsense.*stable_baselines3\.TD3"),
        ({"gradient_steps": 2.5}, "gradient_steps=2.5"),
        ({"train_freq": 0}, "train_freq=0"),
        ({"target_policy_noise": -1}, "^target_policy_noise=-1"),
        ({"n_steps": 101}, "^n_steps=101"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_are_named(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        small(**arguments)


def test_another_batch_size_is_refused() -> None:
    model = small()
    model.learn(60).train(1, batch_size=16)
    with pytest.raises(UserError, match="batch_size=16 to 64"):
        model.train(5, batch_size=64)


def test_memory_is_noted_to_be_saved_already() -> None:
    model = small(optimize_memory_usage=True, replay_buffer_kwargs={"handle_timeout_termination": False})
    model.learn(1)
    notes = [event.text for event in events_of(model.run_folder) if isinstance(event, Note)]
    assert any("optimize_memory_usage" in text for text in notes)


def test_a_truncation_may_count_as_a_termination() -> None:
    arguments = {"replay_buffer_kwargs": {"handle_timeout_termination": False}}
    ours, reference = (make(Numbered(terminates=False), **arguments) for make in (small, theirs))
    for model in (ours, reference):
        model.learn(14)
    assert ours.replay_buffer.dones.sum() == 2 and not ours.replay_buffer.timeouts.any()
    assert ours._memory.replay.rows[0, :14, 4].sum() == 2, "their targets do not go beyond it"
    names = ("obs_shape", "action_dim", "handle_timeout_termination")
    expected = [getattr(reference.replay_buffer, name) for name in names]
    assert [getattr(ours.replay_buffer, name) for name in names] == expected


def test_what_cannot_change_is_refused() -> None:
    model = small()
    model.learn(50)
    model.gamma = 0.5
    with pytest.raises(UserError, match="gamma of this model were changed"):
        model.learn(10)


def test_adamw_and_other_networks_are_ours() -> None:
    kwargs = {"net_arch": {"pi": [8], "qf": [12, 10]}, "activation_fn": torch.nn.Tanh, "n_critics": 3}
    model = small(policy_kwargs={**kwargs, "optimizer_class": torch.optim.AdamW})
    td3 = model._run.parts.cfg.td3
    assert (td3.actor_hidden, td3.critic_hidden, td3.critics, td3.weight_decay) == ((8,), (12, 10), 3, 0.01)
    assert td3.actor_activation == td3.critic_activation == "tanh"
    model.learn(60)
