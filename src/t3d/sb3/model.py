"""Stable-Baselines3's TD3, learning with T3D: environments, callbacks, logger, noise and policies are theirs.

Their loop stays: `learn` collects rollouts and trains in turns. Collecting is a stage of our loop (run/stepped.py), in
which their `collect_rollouts` steps the environment; training is another, which makes the updates that are wanted.
"""

from __future__ import annotations

import signal
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import safetensors.numpy
import stable_baselines3
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, ConvertCallback
from stable_baselines3.common.utils import check_for_correct_spaces, update_learning_rate

from t3d.errors import UserError
from t3d.events import Alarm, Note, Update
from t3d.files import CORRUPT_ERRORS
from t3d.run.stepped import SteppedRun
from t3d.sb3 import files, networks, settings
from t3d.sb3.collecting import CallbackEvaluations, Listener, Statistics, VecEnvCollector, Wanted, evaluating
from t3d.sb3.replay import ReplayView
from t3d.types import EpisodeResult, Evaluation, State

SAVED = (  # attributes that are plain values
    *("learning_rate", "buffer_size", "learning_starts", "batch_size", "tau", "gamma", "gradient_steps", "n_steps"),
    *("policy_delay", "target_policy_noise", "target_noise_clip", "tensorboard_log", "verbose", "seed", "n_envs"),
    *("num_timesteps", "_total_timesteps", "_num_timesteps_at_start", "_episode_num", "_n_updates"),
    *("_current_progress_remaining", "_stats_window_size", "optimize_memory_usage"),
)
MAY_CHANGE = ("actor_lr", "critic_lr")  # between two calls of learn


class TD3(stable_baselines3.TD3):
    """Trains as stable_baselines3.TD3 does. A run_folder keeps what `t3d plot`, `compare`, `dash` and `export` read."""

    def __init__(self, *args: Any, run_folder: str | Path | None = None, **kwargs: Any) -> None:
        self._kept_in = None if run_folder is None else Path(run_folder).absolute()
        super().__init__(*args, **kwargs)

    @property
    def run_folder(self) -> Path | None:
        """Where the run is recorded once it learns; unless one was given, it is removed together with the model."""
        return self._run.path

    def _setup_model(self) -> None:
        if type(self).train is not TD3.train:
            raise settings.only_theirs(f"a train of your own, which {type(self).__name__} has,")
        self._setup_lr_schedule()
        self.set_random_seed(self.seed)
        self._convert_train_freq()
        space = self.observation_space
        self._spec = spec = settings.spec_for(space, self.action_space)
        self._run_seed = int(np.random.randint(2**31)) if self.seed is None else int(self.seed)  # noqa: NPY002 (theirs)
        cfg = settings.config_of(self, spec, self._run_seed, self._env_name())
        if spec.images:
            of_images = settings.networks_of(self.policy_kwargs, spec)
            self.policy: Any = networks.ImagePolicy(space, self.action_space, of_images)
        else:
            self.policy = self.policy_class(space, self.action_space, self.lr_schedule, **self.policy_kwargs)
        self.policy = self.policy.to(self.device)
        self.policy.set_training_mode = lambda mode: None  # nothing in it depends on that, and setting it takes a while
        self._collector, self._evaluations = VecEnvCollector(spec, self.n_envs), CallbackEvaluations()
        self._run = SteppedRun(cfg, self._collector, self._evaluations, self._env_name())
        self._closed = weakref.finalize(self, self._run.close)
        self._learner, self._memory = self._run.parts.learner, self._run.parts.memory
        self._wanted = Wanted(cfg, 0)
        networks.share(self.policy, self._learner.agent)
        self._create_aliases()
        self.replay_buffer = ReplayView(self, self._memory, self._collector)

    def _env_name(self) -> str:
        with suppress(Exception):  # whatever the user's environment has instead of a name
            spec = self.env.get_attr("spec", 0)[0] if self.env is not None else None
            return str(spec.id) if spec is not None else type(self.env.get_attr("unwrapped", 0)[0]).__name__  # type: ignore[union-attr]
        return "environment"

    def _setup_learn(self, total_timesteps: int, *args: Any, **kwargs: Any) -> tuple[int, BaseCallback]:
        self._refuse_changes()
        self._use_statistics()
        episodes, observed = self._episode_num, self._last_obs
        total, callback = super()._setup_learn(total_timesteps, *args, **kwargs)
        if self._last_obs is not observed or self._episode_num != episodes:  # the environments were reset
            self._collector.begin_episodes(self.n_envs)
        if self._run.path is None:
            self._wanted.updates_wanted = self._learner.updates
            self._run.begin(total, self._kept_in, self._wanted)
        return total, callback

    def _refuse_changes(self) -> None:
        """Refuses attributes that were assigned after the model was made and that learning does not read."""
        before = self._run.requested
        now = settings.config_of(self, self._spec, self._run_seed, self._env_name())
        for was, is_now in ((before.td3, now.td3), (before.replay, now.replay)):
            changed = [name for name, value in vars(was).items() if getattr(is_now, name) != value]
            if changed := [name for name in changed if name not in MAY_CHANGE]:
                raise UserError(f"{', '.join(changed)} of this model were changed after it was made; make another one")

    def _use_statistics(self) -> None:
        """Scales batches as the VecNormalize of the environment does, if there is one."""
        vec, memory = self._vec_normalize_env, self._memory
        if vec is not getattr(memory.normaliser, "env", None):
            statistics: Any = vec and Statistics(vec, self._spec, memory.device)
            memory.normaliser = memory.reward_scaler = statistics
            if self._run.path is not None:
                self._learner.prepare()

    def _init_callback(self, callback: Any, progress_bar: bool = False) -> BaseCallback:
        callback = CallbackList(callback) if isinstance(callback, list) else callback
        callback = callback if isinstance(callback, BaseCallback) else ConvertCallback(callback)
        if any(evaluating(callback)):
            callback = CallbackList([callback, Listener(callback, self._report_evaluation)])
        return super()._init_callback(callback, progress_bar)

    def _report_evaluation(self, episodes: list[EpisodeResult]) -> None:
        step = (
            self._memory.collected(0) + sum(map(len, self._collector.rows)) + self.n_envs
        )  # this one is not there yet
        self._evaluations.ready.append(Evaluation(step, 0, self._run.parts.snapshot(), episodes))

    def learn(self, *args: Any, **kwargs: Any) -> TD3:
        with self._consistent_interrupts():
            super().learn(*args, **kwargs)
        self._run.write_policies()
        return self

    def collect_rollouts(self, *args: Any, **kwargs: Any) -> Any:
        """Has our loop collect: their own method steps the environment, and adds to the replay."""
        collector = self._collector
        collector.request = partial(super().collect_rollouts, *args, **kwargs)
        self._advance(lambda: collector.request is None)
        if (error := collector.error) is not None:
            collector.error = None
            raise error
        return collector.answer

    def _sample_action(
        self, learning_starts: int, action_noise: Any = None, n_envs: int = 1
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        if self.num_timesteps < learning_starts:
            return super()._sample_action(learning_starts, action_noise, n_envs)
        scaled = self._collector.act(self._last_obs)
        if action_noise is not None:
            scaled = np.clip(scaled + action_noise(), -1, 1)
        return self.policy.unscale_action(scaled), scaled

    def train(self, gradient_steps: int, batch_size: int = 0) -> None:
        """Has our loop make so many updates."""
        if self._run.path is None:
            raise UserError("train makes updates once learn was called; a learn(0) is enough")
        rate = float(self.lr_schedule(self._current_progress_remaining))
        self.logger.record("train/learning_rate", rate)
        if rate != self._learner.coefficients.actor_lr:
            self._learner.set_rates(actor_lr=rate, critic_lr=rate)
            for network in (self.actor, self.critic):
                update_learning_rate(network.optimizer, rate)
        wanted = self._wanted.updates_wanted = self._learner.updates + gradient_steps
        self._advance(lambda: self._learner.updates >= wanted)
        self._n_updates = wanted
        self.logger.record("train/n_updates", wanted, exclude="tensorboard")

    def _advance(self, is_done: Callable[[], bool]) -> None:
        """Takes stages of our loop until that is done, and reports what happens in them."""
        while not is_done():
            for event in self._run.advance():
                if isinstance(event, Update):
                    self.logger.record("train/critic_loss", event.critic_loss)
                    self.logger.record("train/actor_loss", event.actor_loss)
                elif isinstance(event, Alarm | Note) and self.verbose:
                    print(event.text)  # noqa: T201 (as theirs)
        if self._interrupted:
            self._interrupted = False
            raise KeyboardInterrupt

    _interrupted = False

    @contextmanager
    def _consistent_interrupts(self) -> Iterator[None]:
        """Lets Ctrl-C end learning between two stages; at once in the user's code, and if it is pressed again."""

        def interrupt(number: int, frame: FrameType | None) -> None:
            if self._collector.is_acting or self._interrupted:
                signal.default_int_handler(number, frame)
            self._interrupted = True

        is_main = threading.current_thread() is threading.main_thread()
        is_ours = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if is_ours:
            signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            if is_ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)

    def save(self, path: Any, exclude: Any = None, include: Any = None) -> None:
        """Saves JSON and safetensors in one file, with optimisers and without the replay; nothing in it is code."""
        without = {*(exclude or ())} - {*(include or ())}
        plain = {name: getattr(self, name) for name in SAVED if name not in without}
        if callable(self.learning_rate):
            plain["learning_rate"] = float(self.lr_schedule(self._current_progress_remaining))
        state: State = {
            "plain": plain,
            "train_freq": [self.train_freq.frequency, self.train_freq.unit.value],  # type: ignore[union-attr]
            "policy": next(name for name, kind in settings.POLICIES.items() if kind is self.policy_class),
            "policy_kwargs": files.kwargs_to_state(self.policy_kwargs),
            "spaces": {
                name: files.space_to_state(getattr(self, name)) for name in ("observation_space", "action_space")
            },
            "noise": files.noise_to_state(self.action_noise),
            "learner": self._learner.state(),
        }
        if self._last_obs is not None:
            observed = {"last_obs": self._last_obs, "last_original_obs": self._last_original_obs}
            state |= {name: value for name, value in observed.items() if value is not None}
        files.write(path, state)

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
        """Loads what `save` has written, or a zip of theirs, of which nothing is unpickled."""
        state, run_folder = files.open_model(path), kwargs.pop("run_folder", None)
        try:
            if "theirs" in state:
                return cls._of_theirs(state["theirs"], env, device, custom_objects or {}, run_folder, kwargs)
            model = cls._of_ours(state, env, device, custom_objects or {}, run_folder, kwargs)
        except CORRUPT_ERRORS as error:
            raise UserError(f"{path} holds no model that can be used ({type(error).__name__}: {error})") from error
        if env is None or not force_reset:
            model._last_obs = state.get("last_obs")
            model._last_original_obs = state.get("last_original_obs")
        return model

    @classmethod
    def _of_ours(
        cls, state: State, env: Any, device: Any, custom: dict[str, Any], run_folder: Any, kwargs: dict[str, Any]
    ) -> TD3:
        policy_kwargs = files.kwargs_of(state["policy_kwargs"])
        if kwargs.get("policy_kwargs", policy_kwargs) != policy_kwargs:
            raise ValueError(f"the policy_kwargs in it are {policy_kwargs}, and another model was asked for")
        both = {name: files.space_of(space) for name, space in state["spaces"].items()}
        plain = {name: value for name, value in state["plain"].items() if name in SAVED}
        plain |= {name: value for name, value in custom.items() if name in plain}
        plain |= {"train_freq": tuple(state["train_freq"]), "action_noise": files.noise_of(state["noise"])}
        model = cls._made(state["policy"], policy_kwargs, both, env, device, run_folder, {**plain, **kwargs})
        model._learner.restore(state["learner"])
        model._n_updates = model._learner.updates
        return model

    @classmethod
    def _of_theirs(
        cls, theirs: State, env: Any, device: Any, custom: dict[str, Any], run_folder: Any, kwargs: dict[str, Any]
    ) -> TD3:
        plain = {name: value for name, value in theirs["plain"].items() if name in SAVED}
        plain |= {name: value for name, value in custom.items() if name in SAVED}
        both: dict[str, Any] = {}
        if env is None:
            both["observation_space"], both["action_space"] = theirs["spaces"]()
        missing = [name for name in ("learning_rate", "train_freq", "action_noise") if name not in {**plain, **kwargs}]
        if missing and env is not None:
            warnings.warn(
                f"{', '.join(missing)} are only pickled in this file, which is not read: they have their defaults; "
                "give them to load() to train it as before",
                stacklevel=3,
            )
        name = "MultiInputPolicy" if hasattr(getattr(env, "observation_space", None), "spaces") else "MlpPolicy"
        model = cls._made(name, theirs["policy_kwargs"], both, env, device, run_folder, {**plain, **kwargs})
        model.policy.load_state_dict(theirs["weights"])
        learner, agent = model._learner, model._learner.agent
        for owner, moments in theirs["optimisers"].items():
            stack, adam = getattr(agent, owner), getattr(agent, f"{owner}_adam")
            for moment, their_name in ((adam.mean, "exp_avg"), (adam.square, "exp_avg_sq")):
                for view, number in zip(networks.views(stack, moment), sorted(moments), strict=False):
                    view.copy_(moments[number][their_name])
            adam.steps.fill_(float(moments[0]["step"]) if moments else 0.0)
        learner.updates = int(plain.get("_n_updates", 0))
        return model

    @classmethod
    def _made(
        cls,
        policy: str,
        policy_kwargs: dict[str, Any],
        both: dict[str, Any],
        env: Any,
        device: Any,
        run_folder: Any,
        attributes: dict[str, Any],
    ) -> TD3:
        """A model with these attributes, in these spaces or, if there is an environment, in its spaces."""
        if env is not None:
            env = cls._wrap_env(env, attributes.get("verbose", 0))
            if both:
                check_for_correct_spaces(env, both["observation_space"], both["action_space"])
        model = cls(policy, env, device=device, run_folder=run_folder, _init_setup_model=False)
        of_env = {"n_envs": env.num_envs} if env is not None else {"n_envs": 1, **both}
        vars(model).update({**attributes, "policy_kwargs": policy_kwargs, **of_env})
        model._setup_model()
        return model

    def save_replay_buffer(self, path: Any) -> None:
        contents = ReplayView(self, self._memory, self._collector).contents()
        files.put(path, safetensors.numpy.save(contents), ".safetensors")

    def load_replay_buffer(self, path: Any, truncate_last_traj: bool = True) -> None:
        self.replay_buffer = ReplayView(self, self._memory, self._collector)
        try:
            arrays = safetensors.numpy.load(files.content_of(path, ".safetensors"))
            self.replay_buffer.fill(arrays["rows"], arrays["origins"])
        except CORRUPT_ERRORS as error:
            raise UserError(
                f"{path} holds no replay that can be read ({type(error).__name__}: {error}); load what "
                "Stable-Baselines3 has pickled there, and add its rows here with replay_buffer.add"
            ) from error
