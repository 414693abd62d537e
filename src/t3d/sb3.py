"""Stable-Baselines3's TD3 (here SB3's), learning with T3D: `from t3d.sb3 import TD3` in place of SB3's.

The class inherits environments, wrappers, callbacks, logger, noise and the loop of `learn` from SB3. T3D replaces the
replay, updates, guards, the record of the run and files: SB3's rollout is what T3D's collector returns, and SB3's
`train` advances T3D's loop (run/stepped.py) until the updates are made.

After the class: SB3's arguments as settings of T3D, modules that share T3D's memory, environments as T3D's loop knows
them, the replay in the shape of SB3's, files.
"""
# ruff: noqa: E402 (Stable-Baselines3 is an extra)

from __future__ import annotations

from t3d.errors import UserError, check_installed

check_installed("t3d.sb3", ["stable_baselines3"], "sb3")

import copy
import io
import json
import math
import re
import signal
import threading
import warnings
import weakref
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import gymnasium
import numpy as np
import safetensors.numpy
import stable_baselines3
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.preprocessing import get_action_dim, get_obs_shape
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN, get_actor_critic_arch
from stable_baselines3.common.utils import check_for_correct_spaces
from stable_baselines3.common.vec_env import VecNormalize
from stable_baselines3.td3.policies import CnnPolicy, MlpPolicy, MultiInputPolicy
from torch import Tensor, nn

from t3d.actors.governor import Governor
from t3d.actors.inline import NoEvaluator
from t3d.actors.protocols import Collected
from t3d.algo.networks import Stack
from t3d.config import Config, TD3Config, merge
from t3d.config.metrics import SUCCESS
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.data.replay import joined
from t3d.data.scaling import Normaliser
from t3d.events import Alarm, Note, Update
from t3d.files import CORRUPT_ERRORS, Refused, error_text, fields_in, followed, read, replace, to_count, to_fields
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.observations import flatten_batch, number
from t3d.policy.spec import Floats, Spec
from t3d.run.stepped import ENDLESS, SteppedRun
from t3d.tensors import send
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, UNKNOWN, Batch, EpisodeResult, Evaluation, Rollout, rows_of
from t3d.world.spec import spec_of

SAVED = (  # attributes of a model, of which it cannot do without the first five
    *("policy_class", "policy_kwargs", "observation_space", "action_space", "n_envs", "learning_rate", "buffer_size"),
    *("learning_starts", "batch_size", "tau", "gamma", "train_freq", "gradient_steps", "n_steps", "action_noise"),
    *("policy_delay", "target_policy_noise", "target_noise_clip", "optimize_memory_usage", "tensorboard_log"),
    *("verbose", "seed", "num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_episode_num", "_n_updates"),
    *("_current_progress_remaining", "_stats_window_size", "_last_obs", "_last_original_obs", "replay_buffer_kwargs"),
)
NO_NOISE = (
    "action_noise=None: actions are explored by no noise at all, as with stable_baselines3; the paper's is "
    "NormalActionNoise(np.zeros(n), 0.1 * np.ones(n))"
)
NO_COPIES = "optimize_memory_usage=True changes nothing: the replay of T3D stores each transition once, and images once"


def shared(name: str) -> Any:
    """An attribute of a model that shares its memory with updates: no other object can take its place."""

    def put(model: Any, value: Any) -> None:
        now = vars(model).get(name)
        if now and value is not None and getattr(value, "_orig_mod", value) is not now:  # of torch.compile
            raise UserError(
                f"{name} of a model cannot be replaced; use load(), set_parameters() or replay_buffer.add()"
            )
        vars(model)[name] = value

    return property(lambda model: vars(model).get(name), put)


class TD3(stable_baselines3.TD3):
    """Trains as stable_baselines3.TD3 does. A run_folder keeps what `t3d plot`, `compare`, `dash` and `export` read."""

    policy: Any = shared("policy")
    replay_buffer: Any = shared("replay_buffer")

    def __init__(self, *args: Any, run_folder: str | Path | None = None, **kwargs: Any) -> None:
        self._given_folder = None if run_folder is None else Path(run_folder).absolute()
        super().__init__(*args, **kwargs)

    @property
    def run_folder(self) -> Path | None:
        """Where the run is recorded once it learns; unless one was given, it is removed together with the model."""
        if self._run.path is not None:
            self._run.write_policies()
        return self._run.path

    def _setup_model(self) -> None:
        refuse_unsupported(self)
        self._spec = spec = spec_for(self.observation_space, self.action_space)
        if spec.images:
            self.policy_class = ImagePolicy
        vars(self).update(policy=None, replay_buffer=())  # SB3 makes no replay
        super()._setup_model()
        self.policy.set_training_mode = ignore_mode
        seed = int(np.random.randint(2**31)) if self.seed is None else int(self.seed)  # noqa: NPY002 (SB3's seed)
        self._fixed, env_name = fixed_settings(self), name_of(self.env)
        cfg = config_of(self, networks_of(self.policy, spec), seed, env_name)
        handles_timeouts = self.replay_buffer_kwargs.get("handle_timeout_termination", True)
        self._collector, self._evaluator = VecEnvCollector(spec, self.n_envs, handles_timeouts), NoEvaluator()
        self._run = SteppedRun(cfg, self._collector, self._evaluator, env_name)
        self._run.notes += [NO_NOISE] if self.action_noise is None else []
        self._run.notes += [NO_COPIES] if self.optimize_memory_usage else []
        weakref.finalize(self, self._run.close)
        self._learner, self._memory = self._run.parts.learner, self._run.parts.memory
        self._governor, self._losses = RequestedUpdates(cfg), dict[str, Any]()
        self._evaluating, self._lent_paths = dict[EvalCallback, int](), list[EvalCallback]()
        self._scaled_by: Any = None
        self._interrupted = False
        share_memory(self.policy, self._learner.agent)
        self.replay_buffer = ReplayView(self, self._memory)

    def _setup_learn(
        self, total_timesteps: int, callback: Any = None, reset_num_timesteps: bool = True, *args: Any
    ) -> tuple[int, BaseCallback]:
        changed = [name for name, value in fixed_settings(self).items() if self._fixed[name] != value]
        if changed:
            raise UserError(f"{', '.join(changed)} of this model were changed after it was made; make a new model")
        self._use_statistics()
        resets = reset_num_timesteps or self._last_obs is None
        total, callback = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *args)
        if resets:
            self._collector.begin_episodes()
        if self._run.path is None:
            self._governor.updates_requested = self._learner.updates
            self._run.begin(whole_steps(total), self._given_folder, self._governor)
            self._advance(lambda: self._collector.policy is not None)
        self._evaluating = {each: len(each.evaluations_results) for each in evaluations_in(callback)}
        self._lent_paths = [each for each in self._evaluating if each.log_path is None]
        for n, each in enumerate(self._lent_paths):  # it keeps results only where it has a path
            each.log_path = f"{self._run.path}/evaluations-{n}"
        return total, callback

    def _use_statistics(self) -> None:
        """Scales batches as the VecNormalize of the environment does, if there is one."""
        vec: Any = self._vec_normalize_env
        scaled_by = vec, vec and vec.norm_obs, vec and vec.norm_reward
        if scaled_by == self._scaled_by:
            return
        memory: Any = self._memory
        _, of_observations, of_rewards = scaled_by
        statistics = vec and VecNormalizeStatistics(vec, self._spec, memory.device)
        memory.normaliser = statistics if of_observations else None
        memory.reward_scaler = statistics if of_rewards else None
        one_by_one = of_rewards and self.n_steps > 1
        memory.sampler.replay = RewardsOneByOne(memory.replay, statistics) if one_by_one else memory.replay
        self._scaled_by = scaled_by
        if self._run.path is not None:
            self._learner.prepare()  # what is recorded reads other tensors

    def learn(self, *args: Any, **kwargs: Any) -> TD3:
        try:
            with self._delayed_interrupts():
                super().learn(*args, **kwargs)
                self._advance(lambda: not self._evaluator.ready)
        finally:
            for callback in self._lent_paths:
                callback.log_path = None
        if self._given_folder is not None:
            self._run.write_policies()
        return self

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
        rollout = super().collect_rollouts(*args, **kwargs)
        self._advance(lambda: not self._collector.rows)
        for callback, known in self._evaluating.items():
            self._evaluating[callback] = len(callback.evaluations_results)
            for index in range(known, len(callback.evaluations_results)):
                ago = self.num_timesteps - callback.evaluations_timesteps[index]
                evaluated = self._memory.collected(0) - ago, 0, self._run.parts.snapshot()
                self._evaluator.ready.append(Evaluation(*evaluated, episodes_of(callback, index)))
        return rollout

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        if self._interrupted:
            raise KeyboardInterrupt
        if self.num_timesteps < learning_starts:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        scaled = self._collector.act(self._last_obs)
        if action_noise is not None:
            scaled = np.minimum(np.maximum(scaled + action_noise(), -1), 1)  # as clip, in half its time
        return self.policy.unscale_action(scaled), scaled

    def _store_transition(self, replay_buffer: Any, action: Any, new_obs: Any, *args: Any) -> None:
        super()._store_transition(self._collector, action, new_obs, *args)  # type: ignore[arg-type]
        self._collector.newest = new_obs if self._vec_normalize_env is None else None

    def train(self, gradient_steps: int, batch_size: int = 0) -> None:
        """Makes gradient_steps updates."""
        if self._run.path is None:
            raise UserError("train makes updates once learn was called; a learn(0) is enough")
        if not self._memory.added[0]:
            raise UserError("the replay is empty; fill it by learn() or replay_buffer.add() before train()")
        if batch_size not in (0, self.batch_size):
            raise UserError(f"train cannot change batch_size={self.batch_size} to {batch_size}; make a model with that")
        self._update_learning_rate([self.actor.optimizer, self.critic.optimizer])
        rate = self.actor.optimizer.param_groups[0]["lr"]
        if rate != self._learner.rates.get("actor_lr", self._run.requested.td3.actor_lr):
            self._learner.set_rates(actor_lr=rate, critic_lr=rate)
        wanted = self._n_updates = self._governor.updates_requested = self._learner.updates + int(gradient_steps)
        self._advance(lambda: self._learner.updates >= wanted)
        self.logger.record("train/n_updates", wanted, exclude="tensorboard")
        for name, loss in self._losses.items():  # the newest that are known
            self.logger.record(name, loss)

    def _advance(self, is_done: Callable[[], bool]) -> None:
        """Advances T3D's loop until that is done, and reports what happens."""
        while not is_done():
            for event in self._run.advance():
                if isinstance(event, Update):
                    self._losses = {"train/critic_loss": event.critic_loss, "train/actor_loss": event.actor_loss}
                elif isinstance(event, Alarm | Note) and self.verbose:
                    print(event.text)  # noqa: T201 (as SB3 does)

    @contextmanager
    def _delayed_interrupts(self) -> Iterator[None]:
        """Lets Ctrl-C wait until T3D's loop rests after a step; a second Ctrl-C does not wait."""

        def interrupt(number: int, frame: Any) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True

        self._interrupted, is_main = False, threading.current_thread() is threading.main_thread()
        takes_over = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if takes_over:
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if takes_over and signal.getsignal(signal.SIGINT) is interrupt:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._interrupted:
            raise KeyboardInterrupt

    def save(self, path: Any, exclude: Any = None, include: Any = None) -> None:
        """Saves JSON and safetensors in one file, with optimisers and without the replay; nothing in it is code."""
        data = {name: getattr(self, name) for name in SAVED if name not in {*(exclude or ())} - {*(include or ())}}
        rate, noise = float(self.lr_schedule(1)), self.action_noise
        changed = {"learning_rate": rate, "action_noise": getattr(noise, "base_noise", noise)}
        changed["train_freq"] = self.train_freq.frequency, self.train_freq.unit.value  # type: ignore[union-attr]
        if noise is not None and type(changed["action_noise"]) not in ARGUMENTS:
            warnings.warn("an action noise of your own is not saved; give it to load()", stacklevel=2)
            changed["action_noise"] = None
        of_timeouts = [pair for pair in self.replay_buffer_kwargs.items() if pair[0] not in ("n_steps", "gamma")]
        changed["replay_buffer_kwargs"] = dict(of_timeouts)  # the others are the model's own
        data |= {name: value for name, value in changed.items() if name in data}
        write_model(path, {**data, "has_schedule": callable(self.learning_rate), "learner": self._learner.state()})

    @classmethod
    def load(
        cls,
        path: Any,
        env: Any = None,
        device: Any = "auto",
        custom_objects: dict[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool = True,
        **kwargs: Any,
    ) -> TD3:
        """Loads what `save` has written, or a zip of SB3's, of which nothing is unpickled."""
        given = {**(custom_objects or {}), **kwargs}
        env = env if env is None else cls._wrap_env(env, given.get("verbose", 0))
        data, learned = read_model(path, env, given)
        if kwargs.get("policy_kwargs", data["policy_kwargs"]) != data["policy_kwargs"]:
            raise ValueError(f"the policy_kwargs in it are {data['policy_kwargs']}, and others were given")
        if env is not None:
            check_for_correct_spaces(env, data["observation_space"], data["action_space"])
            data |= {"n_envs": env.num_envs} | ({"_last_obs": None} if force_reset else {})
        run_folder = kwargs.pop("run_folder", None)
        model = cls(data["policy_class"], env, device=device, run_folder=run_folder, _init_setup_model=False)
        changed = {name: value for name, value in (custom_objects or {}).items() if name in SAVED}
        vars(model).update({**data, **changed, **kwargs})
        model._setup_model()
        model._restore(path, learned, learned.get("updates", model._n_updates))
        return model

    def _restore(self, path: Any, learned: dict[str, Any], updates: Any) -> None:
        """Takes over what a file holds: the state of a learner, or weights of Stable-Baselines3."""
        with as_sentences(path):
            if "updates" in learned:
                self._learner.restore({**learned, "updates": updates})
            else:
                self.policy.load_state_dict(learned)
                self._learner.updates = to_count(updates)
        self._n_updates = self._learner.updates

    def set_parameters(self, load_path_or_dict: Any, exact_match: bool = True, device: Any = "auto") -> None:
        """Takes parameters that get_parameters() has returned, or those in a file."""
        if not isinstance(load_path_or_dict, dict):
            _, learned = read_model(load_path_or_dict, self.env, vars(self))
            self._restore(load_path_or_dict, learned, self._learner.updates)
            return
        super().set_parameters(load_path_or_dict, exact_match, device)
        warnings.warn("parameters have no moments of Adam; set_parameters(path) of a saved model has", stacklevel=2)

    def save_replay_buffer(self, path: Any) -> None:
        """Saves every transition and where it comes from, the oldest first, as safetensors."""
        write(path, safetensors.numpy.save(ReplayView(self, self._memory).contents()), ".safetensors")

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        vars(self)["replay_buffer"] = ReplayView(self, self._memory)
        with as_sentences(path, "; pickles of Stable-Baselines3 are not read: add their rows with replay_buffer.add"):
            self.replay_buffer.fill(**safetensors.numpy.load(content_of(path, ".safetensors")))


# Settings: arguments of SB3's TD3 as T3D's settings, and what only SB3 can do.

POLICIES = MlpPolicy, CnnPolicy, MultiInputPolicy
EXTRACTORS = FlattenExtractor, NatureCNN, CombinedExtractor
ACTIVATIONS = {nn.ReLU: "relu", nn.ELU: "elu", nn.SiLU: "silu", nn.Tanh: "tanh"}  # GELU is another function there
OPTIMISERS = torch.optim.Adam, torch.optim.AdamW
BUFFERS = ReplayBuffer, DictReplayBuffer, NStepReplayBuffer
DECAY_OF_ADAMW = 0.01  # where none is given, as in torch
REPORT_EVERY = 1_000  # steps
NAMES = {"target_noise": "target_policy_noise", "capacity": "buffer_size", "n_step": "n_steps"}  # else they are alike


class UnknownSpace(UserError, AssertionError):
    """A space that nothing can be learned in; also the AssertionError that SB3 raises and scripts catch."""


class NotFound(UserError, FileNotFoundError):
    """A missing file; also the FileNotFoundError that SB3 raises and scripts catch."""


def only_sb3(what: str) -> UserError:
    """Refuses what T3D cannot do and SB3 can."""
    return UserError(f"{what} is for stable_baselines3.TD3 alone; import that one for this script")


def refuse_unsupported(model: Any) -> None:
    """Refuses code of the user's own that would take part in updates."""
    if type(model).train is not TD3.train:
        raise only_sb3(f"a train of your own, which {type(model).__name__} has,")
    if model.policy_class not in (*POLICIES, ImagePolicy):
        raise only_sb3(f"the policy {model.policy_class.__name__}")
    if model.replay_buffer_class not in (None, *BUFFERS):
        raise only_sb3(f"replay_buffer_class={model.replay_buffer_class.__name__}")
    known = {"n_steps": model.n_steps, "gamma": model.gamma}
    for name, value in model.replay_buffer_kwargs.items():
        if name != "handle_timeout_termination" and value != known.get(name):
            raise only_sb3(f"replay_buffer_kwargs with {name}={value!r:.60}")
    if model.gradient_steps != int(model.gradient_steps):
        raise UserError(f"gradient_steps={model.gradient_steps} is not an integer")


def spec_for(observation_space: Any, action_space: Any) -> Spec:
    """What an environment with these spaces observes and does."""
    if isinstance(observation_space, spaces.Dict) and not observation_space.spaces:
        raise UnknownSpace("the observation space is empty")
    try:
        return spec_of(SimpleNamespace(observation_space=observation_space, action_space=action_space))
    except UserError as error:
        raise UnknownSpace(str(error)) from None


def networks_of(policy: Any, spec: Spec) -> dict[str, Any]:
    """Networks and optimiser of SB3's policy as fields of TD3Config; refuses what only SB3 has."""
    optimiser, of_optimiser = policy.optimizer_class, dict(policy.optimizer_kwargs)
    is_adamw = optimiser is torch.optim.AdamW
    decay = of_optimiser.pop("weight_decay", DECAY_OF_ADAMW if is_adamw else 0.0)
    if policy.features_extractor_class not in EXTRACTORS:
        raise only_sb3(f"features_extractor_class={policy.features_extractor_class.__name__}")
    if policy.activation_fn not in ACTIVATIONS:
        raise only_sb3(f"activation_fn={policy.activation_fn.__name__}")
    if optimiser not in OPTIMISERS or of_optimiser or (decay and not is_adamw):
        raise only_sb3(f"{optimiser.__name__} with optimizer_kwargs={policy.optimizer_kwargs}")
    if spec.images and not policy.normalize_images:
        raise only_sb3("normalize_images=False with images")
    actor, critic = get_actor_critic_arch(policy.net_arch)
    networks = {"actor_hidden": tuple(actor), "critic_hidden": tuple(critic), "weight_decay": decay}
    networks |= {f"{owner}_activation": ACTIVATIONS[policy.activation_fn] for owner in ("actor", "critic")}
    features = [size for name, size in policy.features_extractor_kwargs.items() if name.endswith("_dim")]
    networks |= {"encoder_features": features[0]} if features and spec.images else {}
    return {**networks, "critics": policy.critic_kwargs["n_critics"]}


def fixed_settings(model: Any) -> dict[str, Any]:
    """Arguments that hold for a model's whole life."""
    names = ("gamma", "tau", "batch_size", "policy_delay", "target_policy_noise", "target_noise_clip")
    return {name: getattr(model, name) for name in (*names, "buffer_size", "n_steps")}


def config_of(model: Any, networks: dict[str, Any], seed: int, env_name: str) -> Config:
    """The configuration of a run with a model's arguments."""
    rate, steps = float(model.lr_schedule(1)), model.train_freq.frequency * model.n_envs
    if steps < 1:
        raise UserError(f"train_freq={model.train_freq.frequency} is too small; it must be at least 1")
    td3 = {name: getattr(model, name) for name in ("gamma", "tau", "batch_size", "policy_delay", "target_noise_clip")}
    td3 |= {"target_noise": model.target_policy_noise, "actor_lr": rate, "critic_lr": rate}
    if td3["policy_delay"] == whole_steps(td3["policy_delay"]):  # 2.0 is one too
        td3["policy_delay"] = whole_steps(td3["policy_delay"])
    settings = {
        "seeds": [seed],
        "total_steps": ENDLESS,
        "random_steps": whole_steps(model.learning_starts),
        "updates_per_step": 1.0 if model.gradient_steps < 0 else model.gradient_steps / steps,
        "device": model.device.type,
        "threads": torch.get_num_threads(),
        "env": {"name": env_name, "num_envs": model.n_envs},
        "td3": {**td3, **networks},
        "replay": {"capacity": max(model.buffer_size // model.n_envs, 1) * model.n_envs, "n_step": model.n_steps},
        "log": {"every_steps": REPORT_EVERY, "diagnose_every_steps": 0},
        "eval": {"every_steps": ENDLESS},
        "checkpoint": {"every_steps": ENDLESS},
    }
    try:
        return merge(Config(), settings)
    except UserError as error:
        raise UserError(re.sub(r"\b(?:td3|replay)\.(\w+)", lambda m: NAMES.get(m[1], m[1]), str(error))) from None


def whole_steps(steps: float) -> int:
    """Steps as we count them; in scripts they may be 1e6, negative or infinite."""
    return math.ceil(min(max(steps, 0), ENDLESS - 1))


def name_of(env: Any) -> str:
    """What the run calls an environment."""
    with suppress(Exception):  # whatever the user's environment has instead of a name
        spec = env.get_attr("spec", 0)[0]
        return str(spec.id) if spec is not None else type(env.get_attr("unwrapped", 0)[0]).__name__
    return "environment"


# Modules: SB3's policies in T3D's memory, so what is written to either is in both.


def share_memory(policy: Any, agent: Any) -> None:
    """Makes the parameters of SB3's policy views of those of T3D's agent."""
    for name in ("actor", "actor_target", "critic", "critic_target"):
        module = getattr(policy, name)
        if isinstance(policy, ImagePolicy):
            module.flat.data = agent.policy.flat if name == "actor" else getattr(agent, name).flat
            continue
        stack, networks = getattr(agent, name), [module.mu] if name.startswith("actor") else module.q_networks
        parameters = [parameter for network in networks for parameter in network.parameters()]
        for parameter, view in zip(parameters, layers(stack, stack.flat), strict=True):
            parameter.data = view


def layers(stack: Stack, flat: Tensor) -> Iterator[Tensor]:
    """Views of flat (K, P), the parameters of K networks: weights and biases as torch shapes them."""
    pieces = stack.architecture.parameters(flat.detach())
    for row in range(len(flat)):
        for weight, bias in zip(pieces[::2], pieces[1::2], strict=True):  # (K, in, out), (K, 1, out)
            yield weight[row].T
            yield bias[row, 0]


def ignore_mode(mode: bool) -> None:
    """Sets no mode of training: nothing in a policy depends on it, and it takes a while."""


class Weights(nn.Module):
    """The parameters of networks that see what the encoder returns."""

    def __init__(self, rows: int, size: int) -> None:
        super().__init__()
        self.flat = nn.Parameter(torch.zeros(rows, size), requires_grad=False)


class ImageActor(BasePolicy):
    """An actor with T3D's encoder of images."""

    def __init__(self, observation_space: Any, action_space: Any, networks: dict[str, Any]) -> None:
        super().__init__(observation_space, action_space, squash_output=True)
        self.networks, self.spec = networks, spec_for(observation_space, action_space)
        self.architecture = actor_architecture(self.spec, TD3Config(**networks))
        self.flat = nn.Parameter(torch.zeros(1, self.architecture.size), requires_grad=False)

    def _get_constructor_parameters(self) -> dict[str, Any]:
        known = {"observation_space": self.observation_space, "action_space": self.action_space}
        return {**known, "networks": self.networks}

    def forward(self, observation: Any, deterministic: bool = True) -> Tensor:
        is_dict = isinstance(observation, dict)
        arrays = {name: each.cpu().numpy() for name, each in (observation if is_dict else {"": observation}).items()}
        policy = MemberPolicy(PolicySnapshot(0, self.architecture, np.asarray(self.flat.detach().cpu())), 0)
        return torch.from_numpy(policy(flat_observations(arrays if is_dict else arrays[""], self.spec))).to(self.device)

    _predict = forward


class ImagePolicy(CnnPolicy):
    """SB3's CnnPolicy with an actor and critics that share T3D's encoder."""

    def _build(self, lr_schedule: Any) -> None:
        spec = spec_for(self.observation_space, self.action_space)
        networks, optimiser = networks_of(self, spec), cast("Any", self.optimizer_class)
        cfg = TD3Config(**networks)
        critics = cfg.critics, critic_architecture(spec, cfg).size
        self.actor: Any = ImageActor(self.observation_space, self.action_space, networks)
        self.actor_target: Any = Weights(1, self.actor.architecture._replace(encoded=True).size)
        self.critic: Any = Weights(*critics)
        self.critic_target: Any = Weights(*critics)
        for network in (self.actor, self.critic):
            network.optimizer = optimiser(network.parameters(), lr=lr_schedule(1))

    set_training_mode = staticmethod(ignore_mode)


# World: SB3's environments, statistics and evaluations as T3D's loop knows them.


def transitions(
    spec: Spec, s: NDArray[Any], s2: NDArray[Any], a: Any, rewards: Any, dones: Any, infos: Any
) -> tuple[NDArray[Any], list[int], list[float]]:
    """Rows of the replay, how each ends, and rewards, of one step of all environments; s, s2 are flat, a in [-1, 1]."""
    endings = [
        GOES_ON if not done else TRUNCATED if info.get("TimeLimit.truncated", False) else TERMINATED
        for done, info in zip(dones, infos, strict=True)
    ]
    r = [number("reward", float(reward)) for reward in rewards]
    both = [(reward, ending == TERMINATED) for reward, ending in zip(r, endings, strict=True)]
    r_and_terminated = np.array(both, np.float32)
    a = np.asarray(a, np.float32).reshape(len(r), -1)
    return rows_of(spec, s, a, r_and_terminated, s2), endings, r


def flat_observations(observations: Any, spec: Spec) -> NDArray[Any]:
    """Observations of all environments, as T3D's replay and policies take them."""
    first = next(iter(observations.values())) if isinstance(observations, dict) else observations
    return flatten_batch(observations, len(first), spec)


class VecEnvCollector:
    """Passes the transitions that SB3's loop collects on to T3D's loop."""

    keeps_episodes, takes_turns = False, True

    def __init__(self, spec: Spec, envs: int, handles_timeouts: bool = True) -> None:
        self.spec, self.handles_timeouts = spec, handles_timeouts
        self.policy: Any = None
        self.rows, self.origins, self.ended = list[Any](), list[tuple[int, ...]](), list[EpisodeResult]()
        self.running = [EpisodeResult(env, -1, 0.0, 0, terminated=False) for env in range(envs)]
        self.begin_episodes()

    def begin_episodes(self) -> None:
        """Notes that the environments were reset."""
        following = max(running.episode for running in self.running) + 1
        self.running = [running._replace(episode=following, total_reward=0.0, length=0) for running in self.running]
        self.newest: Any = None  # observations that were returned last
        self._newest_flat: NDArray[Any] | None = None  # the same, unless an environment was reset

    def act(self, observations: Any) -> Floats:
        """The policy's actions in [-1, 1], in the shape of the environments'."""
        actions: Floats = self.policy(self._flat(observations))
        one_by_one = actions.reshape(-1)
        if not one_by_one.dot(one_by_one) >= 0:  # NaN, and the fastest way to see it
            raise UserError(f"the policy's actions are {actions}: training has diverged; lower the learning rate")
        return actions.reshape(-1, *self.spec.action_shape)

    def _flat(self, observations: Any) -> NDArray[Any]:
        if self._newest_flat is not None and observations is self.newest:
            return self._newest_flat
        return flat_observations(observations, self.spec)

    def add(self, s: Any, s2: Any, a: Any, rewards: Any, dones: Any, infos: Any) -> None:
        """Takes one step of all environments, as SB3's replay would."""
        flat_s2 = flat_observations(s2, self.spec)
        known = infos if self.handles_timeouts else [{}] * len(infos)
        rows, endings, r = transitions(self.spec, self._flat(s), flat_s2, a, rewards, dones, known)
        self._newest_flat = None if any(endings) else flat_s2
        self.rows.append(rows)
        for env, ending in enumerate(endings):
            _, episode, total, length, *_ = self.running[env]
            self.origins.append((env, episode, length, ending))
            now = EpisodeResult(env, episode, total + r[env], length + 1, ending == TERMINATED)
            if ending != GOES_ON:
                success = infos[env].get("is_success")
                self.ended.append(now if success is None else now._replace(metrics={SUCCESS: float(success)}))
                now = EpisodeResult(env, episode + 1, 0.0, 0, terminated=False)
            self.running[env] = now

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        self.policy = MemberPolicy(snapshot._replace(scaling=None), 0)  # VecNormalize scales observations

    def poll(self) -> Collected:
        rows, origins, ended = self.rows, self.origins, self.ended
        if not rows:
            return Collected([], [], [])
        self.rows, self.origins, self.ended = [], [], []
        block = joined(rows), np.array(origins, np.int32)
        return Collected([Rollout(0, *block, self.spec.newest_width, ended, [])], [], [])

    def _nothing(self, *_: Any) -> None: ...

    use = stop = rest = supervise = totals = close = _nothing  # actors, noise and rates are the model's own

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any], stop: threading.Event) -> list[str]:
        return []


class RequestedUpdates(Governor):
    """Makes the updates that `train` is called for; how many depends on rollouts."""

    updates_requested = 0

    def due(self, transitions: Any, updates: int) -> int:
        return self.updates_requested - updates


class VecNormalizeStatistics(Normaliser):
    """Scales batches by a VecNormalize's own statistics, as they are when transitions arrive."""

    def __init__(self, env: VecNormalize, spec: Spec, device: torch.device) -> None:
        super().__init__(1, spec.observation_size, device)
        self.env, self.spec, self.deviation = env, spec, np.ones((1, spec.observation_size))
        self._of_rewards = torch.ones(1, 1, device=device)
        self._limit = torch.full_like(self._std, torch.inf)  # of what is normalised
        self.scale_batch = True  # whether rewards are still unscaled in it
        self.add()

    def add(self, rollout: Rollout | None = None) -> None:
        if self.env.norm_obs:
            statistics: Any = self.env.obs_rms
            for part in self.spec.observation:
                own = statistics.get(part.path[0]) if part.path else statistics
                if own is not None:
                    self.moments.mean[0, part.start : part.stop] = own.mean.reshape(-1)
                    self.deviation[0, part.start : part.stop] = np.sqrt(own.var.reshape(-1) + self.env.epsilon)
                    self._limit[..., part.start : part.stop] = self.env.clip_obs
            self._update_scaling(0)
        send(self._of_rewards, self.scale.astype(np.float32))

    @property
    def std(self) -> NDArray[np.float64]:
        return self.deviation

    @property
    def scale(self) -> NDArray[np.float64]:
        return np.full((1, 1), np.sqrt(self.env.ret_rms.var + self.env.epsilon))

    def _scaled(self, s: Tensor) -> Tensor:
        if s.dtype == torch.uint8:  # with images, whose frames follow the bytes of the vector
            vectors, frames = torch.split(s, [4 * self.spec.observation_size, self.spec.frame_size], dim=-1)
            vectors = self._scaled(vectors.reshape(-1).view(torch.float32).view(*s.shape[:-1], -1))
            return torch.cat([vectors.view(-1).view(torch.uint8).view(*s.shape[:-1], -1), frames], dim=-1)
        return ((s - self._mean) / self._std).clamp(-self._limit, self._limit)

    def scaled(self, batch: Batch) -> Batch:
        s, a, r, *rest = batch
        return Batch(s, a, self.scaled_rewards(r) if self.scale_batch else r, *rest)

    def scaled_rewards(self, r: Tensor) -> Tensor:
        return (r / self._of_rewards).clamp(-self.env.clip_reward, self.env.clip_reward)


class RewardsOneByOne:
    """A replay whose rewards are scaled and clipped before n steps add them up."""

    def __init__(self, replay: Any, statistics: VecNormalizeStatistics) -> None:
        self._replay, self._statistics = replay, statistics
        statistics.scale_batch = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._replay, name)

    def rewards(self, index: Tensor) -> Tensor:
        return self._statistics.scaled_rewards(self._replay.rewards(index))


def episodes_of(callback: EvalCallback, index: int) -> list[EpisodeResult]:
    """The episodes of an evaluation of an EvalCallback that has a log_path, or it keeps none."""
    totals, lengths = callback.evaluations_results[index], callback.evaluations_length[index]
    metrics = [{SUCCESS: float(success)} for each in callback.evaluations_successes[index:][:1] for success in each]
    return [
        EpisodeResult(0, n, float(total), int(length), terminated=False, metrics=metrics[n] if metrics else {})
        for n, (total, length) in enumerate(zip(totals, lengths, strict=True))
    ]


def evaluations_in(callback: Any) -> Iterator[EvalCallback]:
    """The EvalCallbacks in a callback, however deep."""
    if isinstance(callback, EvalCallback):
        yield callback
    for each in [*getattr(callback, "callbacks", []), getattr(callback, "callback", None)]:
        if isinstance(each, BaseCallback):
            yield from evaluations_in(each)


# Replay: T3D's in the shape of SB3's.


COLUMNS = {"observations": 0, "actions": 1, "rewards": 2, "next_observations": 4}  # of a row


class ReplayView(NStepReplayBuffer):
    """T3D's replay as SB3's; arrays hold the filled part, and on the CPU they share its memory."""

    def __init__(self, model: Any, memory: Any) -> None:
        self.observation_space, self.action_space = model.observation_space, model.action_space
        self.n_envs, self.n_steps, self.gamma = model.n_envs, model.n_steps, model.gamma
        self.buffer_size, self.memory = memory.replay.capacity // self.n_envs, memory
        self.device, self.optimize_memory_usage = model.device, False
        self.handle_timeout_termination = model._collector.handles_timeouts
        self.obs_shape: Any = get_obs_shape(self.observation_space)
        self.action_dim = get_action_dim(self.action_space)

    @property
    def pos(self) -> int:  # type: ignore[override]
        return int(self.memory.added[0]) // self.n_envs % self.buffer_size

    @property
    def full(self) -> bool:  # type: ignore[override]
        return bool(self.memory.added[0] >= self.buffer_size * self.n_envs)

    def __getattr__(self, name: str) -> Any:
        if name not in (*COLUMNS, "dones", "timeouts"):
            raise AttributeError(f"{type(self).__name__} has no {name}")
        replay, filled = self.memory.replay, self.size() * self.n_envs
        if name not in COLUMNS:
            endings = replay.links.origins[0, :filled, 3].reshape(-1, self.n_envs)
            return np.float32(endings == TRUNCATED if name == "timeouts" else endings != GOES_ON)
        self._refuse_images()
        column = torch.split(replay.rows[0, :filled].cpu(), replay.columns, dim=-1)[COLUMNS[name]].numpy()
        array = column.reshape(-1, self.n_envs, column.shape[-1])
        return array[..., 0] if name == "rewards" else array if name == "actions" else self._observed(array)

    def _observed(self, array: NDArray[Any]) -> Any:
        """Observations in their own shapes; choices are one-hot vectors."""
        parts = {}
        for part in self.memory.replay.spec.observation:
            shape = part.shape if part.first_choice is None else (-1,)
            parts[part.path] = array[..., part.start : part.stop].reshape(*array.shape[:2], *shape)
        return parts[()] if () in parts else {path[0]: part for path, part in parts.items()}

    def _refuse_images(self) -> None:
        if self.memory.replay.spec.images:
            raise UserError("a replay with images keeps frames once, so it has no arrays that could be read or saved")

    def _get_samples(self, batch_inds: Any, env: Any = None) -> Any:
        """Single transitions, as SB3's buffers draw them."""
        kind: Any = DictReplayBuffer if isinstance(self.observation_space, spaces.Dict) else ReplayBuffer
        return kind._get_samples(self, batch_inds, env)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        names = (*COLUMNS, "dones", "timeouts", "pos", "full")
        return SimpleNamespace(**{name: copy.deepcopy(getattr(self, name), memo) for name in names})

    def add(self, obs: Any, next_obs: Any, action: Any, reward: Any, done: Any, infos: Any) -> None:
        """Adds a step of every environment from elsewhere; it has no neighbours, and is no step of the run."""
        spec = self.memory.replay.spec
        s, s2 = flat_observations(obs, spec), flat_observations(next_obs, spec)
        infos = infos if self.handle_timeout_termination else [{}] * len(infos)
        rows, endings, _ = transitions(spec, s, s2, action, np.ravel(reward), np.ravel(done), infos)
        self._put(rows, np.array([(UNKNOWN, UNKNOWN, UNKNOWN, ending) for ending in endings], np.int32))

    def contents(self) -> Any:
        self._refuse_images()
        return self.memory.replay.contents(0, *self.memory.replay.kept(0))

    def fill(self, rows: NDArray[Any], origins: NDArray[Any]) -> None:
        """Replaces what it holds by such contents."""
        width, count = self.memory.replay.rows.shape[2], len(rows)
        kinds = str(rows.dtype), rows.shape, str(origins.dtype), origins.shape
        if kinds != ("float32", (count, width), "int32", (count, 4)):
            raise ValueError(f"it holds rows {rows.shape}, and transitions of this environment have {width} numbers")
        if not np.isfinite(rows).all() or not np.isin(origins[:, 3], (GOES_ON, TERMINATED, TRUNCATED)).all():
            raise ValueError("one of its transitions is not finite, or has no known ending")
        self.reset()
        self._put(rows, origins)
        self.memory.replay.links.end_episodes()

    def reset(self) -> None:
        """Empties it; steps that were taken stay counted."""
        collected = self.memory.collected(0)
        self.memory.replay.set_added([0])
        self.memory.replay.links.end_episodes()
        self.memory.carried[0] = -collected

    def _put(self, rows: NDArray[Any], origins: NDArray[Any]) -> None:
        self.memory.add(Rollout(0, rows, origins, self.memory.replay.spec.newest_width, [], []))
        self.memory.carried[0] += len(rows)  # no step of the run


# Files: JSON and safetensors in a zip, in which nothing is code; and SB3's zips.

MODEL, TENSORS, FORMAT, MADE = "model.json", "tensors.safetensors", 1, "made by T3D as"
MOST_BYTES, MOST_JSON_BYTES = 2**33, 2**28  # of a file, and of a description in it, before it is unpacked; chosen
ARGUMENTS: dict[Any, dict[str, str]] = {  # what is saved of an object: an argument and its attribute
    spaces.Dict: {"spaces": "spaces"},
    spaces.Box: {"low": "low", "high": "high"},
    spaces.Discrete: {"n": "n", "start": "start"},
    spaces.MultiDiscrete: {"nvec": "nvec", "start": "start"},
    spaces.MultiBinary: {"n": "n"},
    NormalActionNoise: {"mean": "_mu", "sigma": "_sigma"},
    OrnsteinUhlenbeckActionNoise: {"mean": "_mu", "sigma": "_sigma", "theta": "_theta", "dt": "_dt"},
}
CLASSES = {kind.__name__: kind for kind in (*ARGUMENTS, *POLICIES, ImagePolicy, *EXTRACTORS, *ACTIVATIONS, *OPTIMISERS)}


@contextmanager
def as_sentences(path: Any, advice: str = "") -> Iterator[None]:
    """Turns what reading a file raises into a sentence; nothing else is done inside."""
    try:
        yield
    except UserError:
        raise
    except (*CORRUPT_ERRORS, *(TypeError, AssertionError, AttributeError, RuntimeError, zipfile.BadZipFile)) as error:
        kind = NotFound if isinstance(error, FileNotFoundError) else UserError
        raise kind(f"{path} cannot be read ({type(error).__name__}: {error_text(error)}){advice}") from error


def write(path: Any, content: bytes, suffix: str) -> None:
    """Writes into a file that is open, or replaces one whole."""
    if hasattr(path, "write"):
        path.write(content)
        return
    path = Path(path) if Path(path).suffix else Path(path).with_suffix(suffix)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, content)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error_text(error)}") from None


def content_of(path: Any, suffix: str) -> bytes:
    """Reads a file, or one that is open."""
    if hasattr(path, "read"):
        return bytes(path.read(MOST_BYTES))
    is_named_so = Path(path).suffix or Path(path).is_file()
    return read(followed(Path(path) if is_named_so else Path(path).with_suffix(suffix)), MOST_BYTES)


def unpacked(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Unpacks a file, unless it says that it is larger; it is not unpacked further than it says."""
    if (size := archive.getinfo(name).file_size) > most:
        raise Refused(f"{name} holds {size:,} bytes, more than the limit of {most:,}")
    return archive.read(name)


def write_model(path: Any, data: dict[str, Any]) -> None:
    """Writes values: arrays as tensors, what else JSON does not know as the class and the arguments that make it."""
    arrays: dict[str, NDArray[Any]] = {}

    def described(value: Any) -> Any:
        kind = next((kind for kind in ARGUMENTS if isinstance(value, kind)), None)
        if kind is not None:
            return {MADE: kind.__name__, **{name: getattr(value, of) for name, of in ARGUMENTS[kind].items()}}
        if isinstance(value, gymnasium.Space):
            raise UserError(f"{value} cannot be saved; use Box, Dict, Discrete, MultiDiscrete or MultiBinary")
        if isinstance(value, np.ndarray):
            arrays[str(len(arrays))] = np.ascontiguousarray(value).reshape(value.shape)
            return {MADE: "array", "name": str(len(arrays) - 1)}
        if isinstance(value, type):
            return {MADE: "class", "name": value.__name__}
        return str(value) if isinstance(value, Path) else value.item()  # of a number of NumPy

    text, content = json.dumps({"format": FORMAT, "model": data}, default=described), io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(MODEL, text)
        archive.writestr(TENSORS, safetensors.numpy.save(arrays))
    write(path, content.getvalue(), ".zip")


def from_fields(fields: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Makes the object that these fields describe; no class is imported by its name."""
    kind = fields.pop(MADE, None)
    if kind is None:
        return fields
    if kind in ("array", "class"):
        return (arrays if kind == "array" else CLASSES)[fields["name"]]
    if CLASSES[kind] not in ARGUMENTS:
        raise Refused(f"it makes a {kind!r:.60}")
    return CLASSES[kind](**fields, **({"dtype": fields["low"].dtype.type} if kind == "Box" else {}))


def read_model(path: Any, env: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the attributes of a model, and what it has learned: the state of a learner, or SB3's weights."""
    with as_sentences(path):
        content = content_of(path, ".zip")
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            is_t3d = MODEL in archive.namelist()
            data, learned = t3d_model(archive, given) if is_t3d else sb3_model(archive, env, given)
        if missing := [name for name in SAVED[:5] if name not in data]:
            raise Refused(f"it was saved without {', '.join(missing)}")
        refuse_larger(data, len(content))
        return {name: value for name, value in data.items() if name in SAVED}, learned


def refuse_larger(data: dict[str, Any], size: int) -> None:
    """Refuses networks that a file of this size cannot hold, before they are made."""
    spec = spec_for(data["observation_space"], data["action_space"])
    networks = to_fields(data["policy_kwargs"])
    actor, critic = get_actor_critic_arch(networks.get("net_arch") or [])
    for hidden, count in ((actor, 1), (critic, networks.get("n_critics", 2))):
        sizes = [spec.observation_size + spec.action_size, *hidden]
        if min(sizes) < 0 or count * sum(inputs * outputs for inputs, outputs in pairwise(sizes)) > size:
            raise Refused(f"it says that it has {count} networks with layers of {hidden}, and is smaller than these")


def t3d_model(archive: zipfile.ZipFile, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What `write_model` has written."""
    description = unpacked(archive, MODEL, MOST_JSON_BYTES)
    arrays = safetensors.numpy.load(unpacked(archive, TENSORS, MOST_BYTES))
    stored = to_fields(json.loads(description, object_pairs_hook=lambda pairs: from_fields(OrderedDict(pairs), arrays)))
    if stored["format"] != FORMAT:
        raise Refused(f"it has format {stored['format']!r:.60}, and this T3D reads {FORMAT}")
    data = to_fields(stored["model"])
    data["train_freq"] = tuple(data.get("train_freq", (1, "step")))
    if data.get("has_schedule") and "learning_rate" in {*data} - {*given}:
        text = "its learning rate was a schedule, which is code and not saved; give it to load(..., learning_rate=...)"
        warnings.warn(f"{text}; until then the rate is the schedule's first, {data['learning_rate']}", stacklevel=4)
    return data, to_fields(data.pop("learner"))


def sb3_model(archive: zipfile.ZipFile, env: Any, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads plain JSON and weights of SB3's zip, and leaves alone whatever is pickled in it."""
    fields = fields_in(unpacked(archive, "data", MOST_JSON_BYTES))
    weights = weights_in(unpacked(archive, "policy.pth", MOST_BYTES))
    if any("features_extractor" in name for name in weights):
        raise Refused("it has a features extractor, which only stable_baselines3.TD3 has")
    if "actor.mu.0.weight" not in weights or "critic.qf0.0.weight" not in weights:
        raise Refused("it is another algorithm's")
    shapes = {name: list(weight.shape) for name, weight in weights.items() if name.endswith("weight")}
    actor, critic = ([shape[0] for name, shape in shapes.items() if of in name] for of in ("actor.mu.", "critic.qf0."))
    critics = len({name.split(".")[1] for name in shapes if name.startswith("critic.")})
    networks: dict[str, Any] = {"net_arch": {"pi": actor[:-1], "qf": critic[:-1]}, "n_critics": critics}
    described = to_fields(fields.get("policy_kwargs") or {})
    for name, kinds in (("activation_fn", [*ACTIVATIONS]), ("optimizer_class", OPTIMISERS)):
        text = str(described.get(name, kinds[0].__name__))
        known = [kind for kind in kinds if re.search(rf"\b{kind.__name__}\b", text)]
        if not known:
            raise only_sb3(f"{name}={text:.80}")
        networks[name] = known[0]
    if described.get("optimizer_kwargs"):
        raise only_sb3(f"a zip with optimizer_kwargs={described['optimizer_kwargs']!s:.80}")
    data = {name: value for name, value in fields.items() if name in SAVED and not isinstance(value, dict | list)}
    data |= {"policy_kwargs": networks, "policy_class": MlpPolicy, "n_envs": 1, "_last_obs": None}
    if env is None:
        data["observation_space"] = spaces.Box(-np.inf, np.inf, (shapes["actor.mu.0.weight"][1],))
        data["action_space"] = sb3_actions(to_fields(fields["action_space"]), actor[-1])
    else:
        data |= {"observation_space": env.observation_space, "action_space": env.action_space}
        data["policy_class"] = MultiInputPolicy if isinstance(env.observation_space, spaces.Dict) else MlpPolicy
        names = [name for name in ("learning_rate", "train_freq", "action_noise") if name not in {**data, **given}]
        if names:
            text = f"{', '.join(names)} are pickled in it and not read: give them to load() to train as before"
            warnings.warn(text, stacklevel=4)
    return data, weights


def weights_in(content: bytes) -> dict[str, Any]:
    """Reads tensors, which alone torch reads anywhere in T3D; it refuses what would run code."""
    with zipfile.ZipFile(io.BytesIO(content)) as inner:
        if sum(record.file_size for record in inner.infolist()) > MOST_BYTES:
            raise Refused(f"its weights say that they are more than the limit of {MOST_BYTES:,} bytes")
    try:
        return to_fields(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # whatever torch raises for what is not tensors by name
        raise Refused(f"its weights are more than tensors: torch does not read them ({type(error).__name__})") from None


def sb3_actions(described: dict[str, Any], size: int) -> Any:
    """Reads the bounds of actions from their description, which is text."""
    texts = [str(described.get(name, "")).strip("[]").split() for name in ("low", "high")]
    low, high = (np.array([*map(float, words)], np.float32) for words in texts)
    if not low.shape == high.shape == (size,):
        raise UserError("the bounds of its actions are only pickled in it: give the environment, load(path, env=...)")
    return spaces.Box(low, high)
