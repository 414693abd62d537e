"""A user's VecEnv, VecNormalize and EvalCallback as our loop knows a collector, scaling and an evaluator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback, CallbackList, EvalCallback
from stable_baselines3.common.vec_env import VecNormalize

from t3d.actors.governor import Governor
from t3d.actors.inline import NoEvaluator
from t3d.actors.protocols import Collected, Evaluated
from t3d.config import Config
from t3d.config.metrics import SUCCESS
from t3d.errors import UserError
from t3d.policy.acting import MemberPolicy, PolicySnapshot, Scaling
from t3d.policy.observations import flatten_batch, number
from t3d.policy.spec import Floats, Spec
from t3d.tensors import send
from t3d.types import GOES_ON, TERMINATED, TRUNCATED, Batch, EpisodeResult, Evaluation, Rollout, State, rows_of


class VecEnvCollector:
    """Collects whatever `request` steps through, and nothing without one."""

    keeps_episodes, takes_turns = False, True

    def __init__(self, spec: Spec, envs: int) -> None:
        self.spec = spec
        self.request: Callable[[], Any] | None = None
        self.answer: Any = None
        self.error: BaseException | None = None  # of the user's code, which ends no run
        self.is_acting = False
        self.rows: list[NDArray[Any]] = []
        self.origins: list[NDArray[np.int32]] = []
        self.ended: list[EpisodeResult] = []
        self.episodes, self.lengths = np.full(envs, -1), np.zeros(envs, np.int64)
        self.totals_of_episodes = np.zeros(envs)

    def begin_episodes(self, envs: int) -> None:
        """Notes that the environments, of which there may be another number, were reset."""
        newest = int(self.episodes.max()) + 1
        self.episodes, self.lengths, self.totals_of_episodes = (
            np.full(envs, newest),
            np.zeros(envs, int),
            np.zeros(envs),
        )

    def act(self, observations: Any) -> Floats:
        """The policy's actions in [-1, 1], in the shape of the environments'."""
        actions = self.policy(self.flat(observations))
        if not np.isfinite(actions).all():
            raise UserError(f"the policy's actions are {actions}: training has diverged; lower the learning rate")
        return actions.reshape(-1, *self.spec.action_shape)

    def flat(self, observations: Any) -> NDArray[Any]:
        first = next(iter(observations.values())) if isinstance(observations, dict) else observations
        return flatten_batch(observations, len(first), self.spec)

    def add(self, s: Any, s2: Any, a: Floats, rewards: Any, dones: Any, infos: Sequence[dict[str, Any]]) -> None:
        """Takes one step of all environments; actions are in [-1, 1]."""
        truncated = [bool(np.any(info.get("TimeLimit.truncated", False))) for info in infos]
        terminated = np.asarray(dones, bool) & ~np.array(truncated)
        endings = np.where(terminated, TERMINATED, np.where(dones, TRUNCATED, GOES_ON))
        r = [number("reward", float(reward)) for reward in rewards]
        r_and_terminated = np.column_stack([r, terminated]).astype(np.float32)
        flat_a = np.asarray(a, np.float32).reshape(len(r), -1)
        self.rows.append(rows_of(self.spec, self.flat(s), flat_a, r_and_terminated, self.flat(s2)))
        envs = range(len(r))
        self.origins.append(np.column_stack([envs, self.episodes, self.lengths, endings]).astype(np.int32))
        self.lengths += 1
        self.totals_of_episodes += r
        for env in np.flatnonzero(dones).tolist():
            success = infos[env].get("is_success")
            metrics = {} if success is None else {SUCCESS: float(success)}
            about = env, int(self.episodes[env]), float(self.totals_of_episodes[env]), int(self.lengths[env])
            self.ended.append(EpisodeResult(*about, bool(terminated[env]), metrics=metrics))
            self.episodes[env] += 1
            self.lengths[env], self.totals_of_episodes[env] = 0, 0.0

    def take(self) -> list[Rollout]:
        """What was added since it was last taken."""
        rows, origins, ended = self.rows, self.origins, self.ended
        self.rows, self.origins, self.ended = [], [], []
        if not rows:
            return []
        return [Rollout(0, np.concatenate(rows), np.concatenate(origins), self.spec.newest_width, ended, [])]

    def publish(self, snapshot: PolicySnapshot, updates: int) -> None:
        self.policy = MemberPolicy(snapshot._replace(scaling=None), 0)  # their environments scale observations

    def poll(self) -> Collected:
        request, self.request = self.request, None
        if request is not None:
            self.is_acting = True
            try:
                self.answer = request()
            except BaseException as error:
                self.error = error
            self.is_acting = False
        return Collected(self.take(), [], [])

    def use(self, cfg: Config) -> None:
        """The noise is the model's own, and its rates are the learner's."""

    def stop(self, member: int) -> None: ...
    def supervise(self) -> None: ...
    def totals(self) -> None: ...

    def state(self) -> State:
        return {}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        return []

    def close(self) -> None: ...


class Wanted(Governor):
    """Calls for the updates that their loop asks for: their number depends on rollouts."""

    def __init__(self, cfg: Config, updates: int) -> None:
        super().__init__(cfg)
        self.updates_wanted = updates

    def due(self, transitions: Sequence[int], updates: int) -> int:
        return self.updates_wanted - updates


class Statistics:
    """A VecNormalize's statistics as they are when transitions arrive, instead of our normaliser and reward scaler.

    They are tensors, which CUDA graphs read.
    """

    def __init__(self, env: VecNormalize, spec: Spec, device: torch.device) -> None:
        self.env, self.spec = env, spec
        new = [torch.zeros, torch.ones, torch.ones]
        shapes = [(1, spec.observation_size), (1, spec.observation_size), (1, 1)]
        self._mean, self._std, self._scale = (
            create(shape, dtype=torch.float32, device=device) for create, shape in zip(new, shapes, strict=True)
        )
        self.add()

    @property
    def scales_observations(self) -> bool:
        return bool(self.env.norm_obs) and not self.spec.images

    def add(self, *rollouts: Rollout) -> None:
        """Reads the statistics again."""
        moments = self._moments() if self.scales_observations else ()
        for target, values in zip((self._mean, self._std), moments, strict=False):
            send(target, values.astype(np.float32)[None])
        send(self._scale, self.scale.astype(np.float32))

    def _moments(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        env, rms = self.env, self.env.obs_rms
        if not isinstance(rms, dict):
            return rms.mean.reshape(-1), np.sqrt(rms.var.reshape(-1) + env.epsilon)
        mean, std = np.zeros(self.spec.observation_size), np.ones(self.spec.observation_size)
        for part in self.spec.observation:
            if part.path[0] in (env.norm_obs_keys or ()):
                own = rms[part.path[0]]
                mean[part.start : part.stop] = own.mean.reshape(-1)
                std[part.start : part.stop] = np.sqrt(own.var.reshape(-1) + env.epsilon)
        return mean, std

    @property
    def scale(self) -> NDArray[np.float64]:
        """(1, 1): what rewards are divided by."""
        env = self.env
        return np.full((1, 1), np.sqrt(env.ret_rms.var + env.epsilon) if env.norm_reward else 1.0)

    def normalised(self, batch: Batch) -> Batch:
        if not self.scales_observations:
            return batch
        limit = self.env.clip_obs
        s, a, r, s2, *rest = batch
        s, s2 = (((each - self._mean) / self._std).clamp(-limit, limit) for each in (s, s2))
        return Batch(s, a, r, s2, *rest)

    def scaled(self, batch: Batch) -> Batch:
        if not self.env.norm_reward:
            return batch
        s, a, r, *rest = batch
        return Batch(s, a, (r / self._scale).clamp(-self.env.clip_reward, self.env.clip_reward), *rest)

    def put_into(self, snapshot: PolicySnapshot) -> PolicySnapshot:
        if not self.scales_observations:
            return snapshot
        mean, std = (values.astype(np.float32)[None] for values in self._moments())
        return snapshot._replace(scaling=Scaling(mean, std))

    def state(self) -> State:
        return {}

    def restore(self, state: State) -> None: ...


class CallbackEvaluations(NoEvaluator):
    """Evaluates nothing itself; what EvalCallbacks have found is an evaluation of the run."""

    def __init__(self) -> None:
        self.ready: list[Evaluation] = []

    def poll(self, *, wait: bool = False) -> Evaluated:
        ready, self.ready = self.ready, []
        return Evaluated(ready, [], [])


class Heard:
    """Stands in for what an EvalCallback calls at each step of its episodes, and keeps their returns and lengths."""

    def __init__(self, before: Callable[..., None]) -> None:
        self.before, self.returns, self.lengths = before, list[float](), list[int]()

    def __call__(self, locals_: dict[str, Any], globals_: dict[str, Any]) -> None:
        self.returns, self.lengths = locals_["episode_rewards"], locals_["episode_lengths"]
        self.before(locals_, globals_)

    def take(self) -> list[EpisodeResult]:
        results = [
            EpisodeResult(0, episode, float(total), int(length), terminated=False)
            for episode, (total, length) in enumerate(zip(self.returns, self.lengths, strict=True))
        ]
        self.returns, self.lengths = [], []
        return results


class Listener(BaseCallback):
    """Comes after the user's callbacks, and reports the evaluations among them."""

    def __init__(self, callback: BaseCallback, report: Callable[[list[EpisodeResult]], None]) -> None:
        super().__init__()
        self.report, self.heard = report, list[Heard]()
        for each in evaluating(callback):
            if not isinstance(each._log_success_callback, Heard):
                each._log_success_callback = Heard(each._log_success_callback)  # type: ignore[method-assign]
            self.heard.append(each._log_success_callback)

    def _on_step(self) -> bool:
        for heard in self.heard:
            if heard.returns:
                self.report(heard.take())
        return True


def evaluating(callback: Any) -> Iterator[EvalCallback]:
    """The EvalCallbacks in a callback, however deep."""
    if isinstance(callback, EvalCallback):
        yield callback
    inner = callback.callbacks if isinstance(callback, CallbackList) else [getattr(callback, "callback", None)]
    for each in inner:
        if isinstance(each, BaseCallback):
            yield from evaluating(each)
