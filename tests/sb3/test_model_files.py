"""What models of t3d.sb3 are saved in, and read from: what comes back, what is refused, and what a kill leaves."""

from __future__ import annotations

import io
import json
import os
import pickle
import signal
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise

from t3d.errors import UserError
from t3d.sb3 import TD3
from their_models import NETWORKS, Numbered, numbered, small, theirs

PENDULUM = np.array([[1, 0, 0.5], [0, 1, -3]], np.float32)


def tensors(model: Any) -> dict[str, Any]:
    state: dict[str, Any] = model._learner.state()
    return {name: value for name, value in state.items() if isinstance(value, np.ndarray)}


def test_a_saved_model_comes_back_whole_and_holds_no_code(tmp_path: Path) -> None:
    noise = OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.3 * np.ones(1), theta=0.2)
    kwargs = {"net_arch": {"pi": [8], "qf": [12, 10]}, "activation_fn": torch.nn.Tanh}
    model = small(action_noise=noise, policy_kwargs=kwargs, train_freq=(2, "step"), learning_rate=2e-3)
    model.learn(60)
    model.save(tmp_path / "deep" / "model")
    with zipfile.ZipFile(tmp_path / "deep" / "model.zip") as archive:
        assert sorted(archive.namelist()) == ["model.json", "tensors.safetensors"]
        json.loads(archive.read("model.json"))
    loaded = TD3.load(tmp_path / "deep" / "model", env=gym.make("Pendulum-v1"))
    for name, array in tensors(model).items():
        np.testing.assert_array_equal(tensors(loaded)[name], array, err_msg=name)
    assert (loaded._n_updates, loaded.num_timesteps, loaded.train_freq) == (model._n_updates, 60, model.train_freq)
    assert (
        loaded.learning_rate == 2e-3 and loaded.policy_kwargs == kwargs and vars(loaded.action_noise)["_theta"] == 0.2
    )
    np.testing.assert_array_equal(loaded.predict(PENDULUM)[0], model.predict(PENDULUM)[0])
    assert loaded.learn(40, reset_num_timesteps=False)._n_updates > model._n_updates
    alone = TD3.load(tmp_path / "deep" / "model.zip", batch_size=9)
    assert (alone.batch_size, alone.observation_space) == (9, model.observation_space)


def test_a_schedule_is_no_data_and_the_rate_never_ends_at_zero(tmp_path: Path) -> None:
    model = small(learning_rate=lambda left: left / 99)
    model.learn(60).save(tmp_path / "model")
    with pytest.warns(UserWarning, match=r"was a schedule.*learning_rate=.*0\.0101"):
        loaded = TD3.load(tmp_path / "model", env=gym.make("Pendulum-v1"))
    before = loaded.policy.state_dict()["actor.mu.0.weight"].clone()
    assert not torch.equal(loaded.learn(60).policy.state_dict()["actor.mu.0.weight"], before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for key in ("learning_rate", "custom_objects"):
            schedule: Any = lambda left: left / 50  # noqa: E731
            given: Any = {key: {"learning_rate": schedule} if key == "custom_objects" else schedule}
            again = TD3.load(tmp_path / "model", env=gym.make("Pendulum-v1"), **given)
            assert again.lr_schedule(1) == 0.02 and again.learn(60)._learner.rates["actor_lr"] < 0.02


def test_the_random_streams_of_updates_are_saved_too(tmp_path: Path) -> None:
    model = small()
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "replay")
    loaded = TD3.load(tmp_path / "model", env=gym.make("Pendulum-v1"))
    loaded.load_replay_buffer(tmp_path / "replay")
    model.learn(0, reset_num_timesteps=False)
    loaded.learn(0, reset_num_timesteps=False)
    assert [each.replay_buffer.size() for each in (model, loaded)] == [60, 60]
    noise = [each._learner.draw().target_noise.clone() for each in (model, loaded)]
    torch.testing.assert_close(noise[0], noise[1], rtol=0, atol=0)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict({"b": spaces.Box(-1, 1, (2, 3)), "a": spaces.Discrete(4, start=-1)}),
        spaces.MultiDiscrete([3, 4]),
        spaces.MultiBinary(3),
        spaces.MultiBinary([2, 2]),
        spaces.Box(0, 255, (40, 40, 2), np.uint8),
        spaces.Box(np.array([-np.inf, 0]), np.array([np.inf, 1]), dtype=np.float64),
    ],
    ids=str,
)
def test_spaces_come_back(space: Any, tmp_path: Path) -> None:
    images = space.dtype == np.uint8
    policy = "MultiInputPolicy" if isinstance(space, spaces.Dict) else "CnnPolicy" if images else "MlpPolicy"
    model = small(numbered(1, space=space), policy)
    model.save(tmp_path / "model")
    loaded = TD3.load(tmp_path / "model", env=numbered(1, space=space))
    assert TD3.load(tmp_path / "model").observation_space == model.observation_space
    observed = model.env.reset()
    np.testing.assert_array_equal(loaded.predict(observed)[0], model.predict(observed)[0])


def test_an_open_file_an_excluded_value_and_a_noise_of_ones_own(tmp_path: Path) -> None:
    class Own(NormalActionNoise):
        pass

    model, file = small(action_noise=Own(np.zeros(1), np.ones(1)), verbose=0, tau=0.5), io.BytesIO()
    with pytest.warns(UserWarning, match="noise of your own is not saved"):
        model.save(file, exclude=["tau"])
    file.seek(0)
    loaded = TD3.load(file)
    assert (loaded.tau, loaded.action_noise) == (0.005, None)


def test_a_zip_of_theirs_is_read_and_its_optimisers_start_again(tmp_path: Path) -> None:
    kwargs = {"net_arch": {"pi": [8, 7], "qf": [12, 10]}, "n_critics": 3, "activation_fn": torch.nn.Tanh}
    model = theirs(policy_kwargs=kwargs, gamma=0.9, policy_delay=3)
    model.learn(70)
    model.save(tmp_path / "theirs")
    with pytest.warns(UserWarning, match="train_freq, action_noise are pickled in it"):
        ours = TD3.load(tmp_path / "theirs", env=gym.make("Pendulum-v1"))
    alone = TD3.load(tmp_path / "theirs.zip")
    assert (ours.gamma, ours.policy_delay, ours.num_timesteps, ours._n_updates) == (0.9, 3, 70, 30)
    for loaded in (ours, alone):
        np.testing.assert_allclose(loaded.predict(PENDULUM)[0], model.predict(PENDULUM)[0], atol=1e-6)
    for name, expected in model.policy.state_dict().items():
        torch.testing.assert_close(ours.policy.state_dict()[name], expected, rtol=0, atol=0)
    assert ours._learner.updates == 30 and ours._learner.agent.critic_adam.steps == 0
    assert ours.learn(60, reset_num_timesteps=False)._n_updates > 30


@pytest.mark.parametrize("activation", [torch.nn.GELU, torch.nn.LeakyReLU, torch.nn.CELU])
def test_a_zip_of_theirs_with_networks_of_another_kind_is_refused(activation: Any, tmp_path: Path) -> None:
    theirs(policy_kwargs={**NETWORKS, "activation_fn": activation}).save(tmp_path / "theirs")
    with pytest.raises(UserError, match=rf"{activation.__name__}.*stable_baselines3\.TD3"):
        TD3.load(tmp_path / "theirs")


def test_the_optimiser_of_a_zip_of_theirs(tmp_path: Path) -> None:
    for kind, decay in ((torch.optim.AdamW, 0.01), (torch.optim.Adam, 0.0), (torch.optim.SGD, None)):
        theirs(policy_kwargs={**NETWORKS, "optimizer_class": kind}).save(tmp_path / "theirs")
        if decay is None:
            with pytest.raises(UserError, match=r"SGD.*stable_baselines3\.TD3"):
                TD3.load(tmp_path / "theirs")
        else:
            loaded = TD3.load(tmp_path / "theirs")
            assert type(loaded.actor.optimizer) is kind and loaded._run.parts.cfg.td3.weight_decay == decay


def test_parameters_are_set_from_files_with_the_moments_and_from_values_without(tmp_path: Path) -> None:
    model, reference = small(), theirs()
    model.learn(70).save(tmp_path / "ours")
    reference.save(tmp_path / "theirs")
    other = small(seed=1)
    other.set_parameters(tmp_path / "ours")
    np.testing.assert_array_equal(other.predict(PENDULUM)[0], model.predict(PENDULUM)[0])
    torch.testing.assert_close(other._learner.agent.critic_adam.mean, model._learner.agent.critic_adam.mean)
    assert other._learner.updates == 0 and other.learn(60)._n_updates == 20
    other.set_parameters(tmp_path / "theirs")
    np.testing.assert_allclose(other.predict(PENDULUM)[0], reference.predict(PENDULUM)[0], atol=1e-6)
    with pytest.warns(UserWarning, match="moments"):
        other.set_parameters(model.get_parameters())
    np.testing.assert_array_equal(other.predict(PENDULUM)[0], model.predict(PENDULUM)[0])


def test_other_n_steps_may_be_given_and_the_meaning_of_timeouts_is_kept(tmp_path: Path) -> None:
    kwargs = {"handle_timeout_termination": False}
    small(n_steps=3, replay_buffer_kwargs=kwargs).save(tmp_path / "model")
    loaded = TD3.load(tmp_path / "model", n_steps=5)
    assert loaded._memory.sampler.n_step == 5 and not loaded.replay_buffer.handle_timeout_termination


def test_networks_without_hidden_layers_come_back(tmp_path: Path) -> None:
    model = small(policy_kwargs={"net_arch": []})
    model.save(tmp_path / "linear")
    np.testing.assert_array_equal(TD3.load(tmp_path / "linear").predict(PENDULUM)[0], model.predict(PENDULUM)[0])


def test_a_missing_file_is_also_what_scripts_catch(tmp_path: Path) -> None:
    for load in (TD3.load, small().load_replay_buffer):
        with pytest.raises(FileNotFoundError, match="cannot be read") as raised:
            load(tmp_path / "missing")
        assert isinstance(raised.value, UserError)


def test_what_a_model_cannot_do_without_is_named(tmp_path: Path) -> None:
    small().save(tmp_path / "model", exclude=["policy_kwargs"])
    with pytest.raises(UserError, match="saved without policy_kwargs"):
        TD3.load(tmp_path / "model")


def test_an_error_of_ours_is_not_blamed_on_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(model: Any) -> None:
        raise AttributeError("a bug")

    small().save(tmp_path / "model")
    monkeypatch.setattr(TD3, "_setup_model", fails)
    with pytest.raises(AttributeError, match="a bug"):
        TD3.load(tmp_path / "model")


def test_a_policy_can_be_pickled() -> None:
    content, model = io.BytesIO(), small()
    torch.save(model.policy, content)
    content.seek(0)
    loaded = torch.load(content, weights_only=False)
    np.testing.assert_array_equal(loaded.predict(PENDULUM)[0], model.predict(PENDULUM)[0])


def test_a_saved_replay_comes_back_and_another_one_is_refused(tmp_path: Path) -> None:
    model, other = small(Numbered(terminates=False)), small(Numbered(spaces.Box(-1, 1, (3,))))
    model.learn(50)
    model.save_replay_buffer(tmp_path / "replay")
    loaded = small(Numbered(terminates=False))
    loaded.load_replay_buffer(tmp_path / "replay")
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        np.testing.assert_array_equal(getattr(loaded.replay_buffer, name), getattr(model.replay_buffer, name))
    assert loaded.learn(41)._memory.collected(0) == 41
    with pytest.raises(UserError, match="have 9 numbers"):
        other.load_replay_buffer(tmp_path / "replay")
    (tmp_path / "replay.pkl").write_bytes(pickle.dumps({"rows": 1}))
    with pytest.raises(UserError, match=r"pickles of Stable-Baselines3 are not read"):
        other.load_replay_buffer(tmp_path / "replay.pkl")


class Marks:
    """Leaves a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def rewritten(path: Path, changes: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**files, **changes}.items():
            archive.writestr(name, content)


def saved_by_torch(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def swapped(path: Path, change: Callable[[str], str]) -> None:
    with zipfile.ZipFile(path) as archive:
        text = archive.read("model.json").decode()
    assert change(text) != text
    rewritten(path, {"model.json": change(text).encode()})


@pytest.mark.parametrize(
    "change",
    [
        lambda path, evil: path.write_bytes(pickle.dumps(evil)),
        lambda path, evil: path.write_bytes(b""),
        lambda path, evil: path.write_bytes(path.read_bytes()[:-2000]),
        lambda path, evil: swapped(path, lambda text: '{"format":2}'),
        lambda path, evil: swapped(path, lambda text: "[" * 100_000),
        lambda path, evil: swapped(path, lambda text: text.replace('"name": "TD3Policy"', '"name": "Evil"')),
        lambda path, evil: swapped(path, lambda text: text.replace('as": "Box"', 'as": "Adam"')),
        lambda path, evil: swapped(path, lambda text: text.replace("[16, 12]", "[999999, 999999]")),
        lambda path, evil: swapped(path, lambda text: text.replace("[16, 12]", '["a", "b"]')),
        lambda path, evil: swapped(path, lambda text: text.replace('"gamma": 0.99', '"gamma": "x"')),
        lambda path, evil: swapped(path, lambda text: text.replace('"buffer_size": 500', f'"buffer_size": {10**14}')),
        lambda path, evil: rewritten(path, {"tensors.safetensors": pickle.dumps(evil)}),
        lambda path, evil: rewritten(path, {"tensors.safetensors": b"\xff" * 7 + b"\x7f" + b"{}"}),
    ],
)
def test_hostile_files_of_ours_are_refused_in_a_sentence(change: Any, tmp_path: Path) -> None:
    path, marker = tmp_path / "model.zip", tmp_path / "executed"
    small().save(path)
    change(path, Marks(marker))
    started = time.monotonic()
    with pytest.raises(UserError):
        TD3.load(path)
    assert not marker.exists() and time.monotonic() - started < 20


@pytest.mark.parametrize("has_env", [True, False])
@pytest.mark.parametrize(
    "changes",
    [
        lambda evil: {"data": pickle.dumps(evil)},
        lambda evil: {"policy.pth": saved_by_torch(evil)},
        lambda evil: {"policy.pth": pickle.dumps(evil)},
        lambda evil: {"policy.pth": saved_by_torch({"actor.mu.0.weight": evil, "critic.qf0.0.weight": evil})},
        lambda evil: {"policy.pth": saved_by_torch({"actor.mu.0.weight": 1, "critic.qf0.0.weight": 2})},
        lambda evil: {"policy.pth": saved_by_torch(dict.fromkeys(WEIGHTS, torch.zeros(1).expand(10**7, 10**7)))},
        lambda evil: {"policy.pth": saved_by_torch({**WEIGHTS, "actor.features_extractor.cnn.0.weight": evil.marker})},
        lambda evil: {"policy.pth": saved_by_torch({"q_net.0.weight": torch.zeros(2, 2)})},
    ],
)
def test_hostile_zips_of_theirs_are_refused_in_a_sentence(changes: Any, has_env: bool, tmp_path: Path) -> None:
    path, marker = tmp_path / "model.zip", tmp_path / "executed"
    theirs().save(path)
    rewritten(path, changes(Marks(marker)))
    with pytest.raises(UserError):
        TD3.load(path, env=gym.make("Pendulum-v1") if has_env else None)
    assert not marker.exists()


WEIGHTS: dict[str, Any] = {"actor.mu.0.weight": torch.zeros(2, 3), "critic.qf0.0.weight": torch.zeros(2, 4)}


def test_what_is_pickled_in_a_zip_of_theirs_is_never_unpickled(tmp_path: Path) -> None:
    path, marker = tmp_path / "model.zip", tmp_path / "executed"
    theirs().save(path)
    with zipfile.ZipFile(path) as archive:
        fields = json.loads(archive.read("data"))
    evil = {":type:": "evil", ":serialized:": __import__("base64").b64encode(pickle.dumps(Marks(marker))).decode()}
    pickled = [name for name, value in fields.items() if isinstance(value, dict) and ":serialized:" in value]
    assert len(pickled) > 5
    kept = {"low": fields["action_space"]["low"], "high": fields["action_space"]["high"]}
    rewritten(path, {"data": json.dumps({**fields, **{name: {**evil, **kept} for name in pickled}}).encode()})
    TD3.load(path)
    assert not marker.exists()


def test_a_file_that_says_that_it_is_huge_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "model.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("model.json", "w") as file:
        for _ in range(2**9):
            file.write(bytes(2**20))
    with pytest.raises(UserError, match="more than the limit"):
        TD3.load(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.zip")
    with pytest.raises(UserError, match="not a plain file"):
        TD3.load(tmp_path / "model.zip")


@pytest.mark.slow
def test_forty_kills_while_it_is_saved_leave_forty_models(tmp_path: Path) -> None:
    path, model, rng = tmp_path / "model.zip", small(policy_kwargs={"net_arch": [200, 200]}), np.random.default_rng(0)
    model.save(path)
    saved = []
    for _ in range(40):
        process = os.fork()
        if not process:
            while True:
                model.num_timesteps += 1
                model.save(path)
        time.sleep(rng.uniform(0.05, 0.3))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        model.num_timesteps = TD3.load(path).num_timesteps
        saved.append(model.num_timesteps)
    assert len(saved) == 40 and saved == sorted(saved) and saved[-1] > 40
