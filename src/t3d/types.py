"""The values passed between the parts of T3D. Shapes are stated here once.

M members (one per seed, in a sweep one per seed and value), C critics per member, B batch, N environments per member,
E evaluation episodes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

from t3d.policy.observations import newest
from t3d.policy.spec import Floats, Spec, floats_in

if TYPE_CHECKING:  # torch takes 1.5 s to import, and actors and --help never need it
    import torch
    from torch import Tensor

    from t3d.policy.acting import PolicySnapshot

# Where a transition comes from (..., 4): environment, episode, step in it (from 0), how it ended. One that goes on but
# has no next was cut by a fault, which comes after the transition is stored and so cannot be marked in it.
Origins = NDArray[np.int32]
GOES_ON, TERMINATED, TRUNCATED = range(3)
UNKNOWN = -1  # as environment: nothing is known about the transition, and it has no neighbours
Coefficient = Union[float, "Tensor"]  # a number that updates read: for all members, or (M,), one for each
Policy = Callable[[NDArray[Any]], Floats]  # observations (N, observation_width) -> actions (N, action_size) in [-1, 1]
State = dict[str, Any]  # what a part needs to resume exactly: arrays and plain values by name, nested


def sample_std(values: ArrayLike, axis: int | None = None) -> Any:
    """The ± of everything T3D says: the standard deviation with n - 1; 0 for a single value."""
    array = np.asarray(values, np.float64)
    count = array.size if axis is None else array.shape[axis]
    return array.std(axis=axis, ddof=min(1, count - 1))


class EpisodeResult(NamedTuple):
    """How an episode has gone, in training or in an evaluation; plain values, which travel between processes."""

    env: int
    episode: int
    total_reward: float
    length: int
    terminated: bool  # otherwise it was truncated, or cut off at eval.max_steps
    bad_values: int = 0  # kept out of it; of an episode in training the one that cut it off
    metrics: Mapping[str, float] = {}  # what `info` said of it, as world/metrics.py reduces it
    unusable: Mapping[str, str] = {}  # metrics that it lacks, and why
    args: Mapping[str, Any] = {}  # of env.schedule: those that this episode had


def mean_metrics(each: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Averages each metric over the episodes, or evaluations, that have it."""
    names = dict.fromkeys(name for metrics in each for name in metrics)
    return {name: float(np.mean([metrics[name] for metrics in each if name in metrics])) for name in names}


def values_of(name: str, episodes: Sequence[EpisodeResult]) -> list[float]:
    """Returns a metric of the episodes that have it."""
    return [episode.metrics[name] for episode in episodes if name in episode.metrics]


class Fault(NamedTuple):
    """A bad value from an environment, which must not reach the replay, and where it was found."""

    env: int
    episode: int
    episode_step: int  # 0 is the reset
    field: str
    text: str
    number: int = 0  # of this environment's bad values so far


class Rollout(NamedTuple):
    """A block of T transitions of one member, in the order they happened.

    With images rows are bytes, and s and s2 hold their newest frame only: the replay knows the ones before.
    """

    member: int
    rows: NDArray[Any]  # (T, sum of row_sizes): a transition is one row [s, a, r, terminated, s2], also in the replay
    origins: Origins  # (T, 4): where each comes from
    s_size: int  # elements of s in a row
    episodes: list[EpisodeResult]  # those that ended inside this block
    faults: list[Fault]  # bad values found and kept out

    @property
    def s(self) -> NDArray[Any]:  # (T, s_size); this and the others are views of the rows, or copies of bytes
        return self.rows[:, : self.s_size]

    @property
    def a(self) -> Floats:  # (T, action_size), in [-1, 1]
        return floats_in(self.rows[:, self.s_size : -self.s_size])[:, :-2]

    @property
    def r(self) -> Floats:  # (T,)
        return floats_in(self.rows[:, self.s_size : -self.s_size])[:, -2]

    @property
    def s2(self) -> NDArray[Any]:  # (T, s_size): the true next state, also where an episode ends
        return self.rows[:, -self.s_size :]


def rows_of(spec: Spec, s: NDArray[Any], a: Floats, r_and_terminated: Floats, s2: NDArray[Any]) -> NDArray[Any]:
    """Joins T transitions to rows; s and s2 are observations, whose older frames are left out."""
    if not spec.images:
        return np.concatenate([s, a, r_and_terminated, s2], axis=1, dtype=np.float32)
    floats = np.concatenate([a, r_and_terminated], axis=1, dtype=np.float32)
    return np.concatenate([newest(s, spec), floats.view(np.uint8), newest(s2, spec)], axis=1)


def row_sizes(spec: Spec) -> list[int]:
    """Elements of s, a, r, terminated and s2 in a row: floats, or bytes if there are images."""
    s, number = spec.newest_width, 4 if spec.images else 1  # bytes, or floats
    return [s, number * spec.action_size, number, number, s]


class Batch(NamedTuple):
    """What one update learns from."""

    s: Tensor  # (M, B, observation_size), or uint8 (M, B, observation_width) with images
    a: Tensor  # (M, B, action_size)
    r: Tensor  # (M, B)
    s2: Tensor  # as s
    terminated: Tensor  # (M, B), 1.0 or 0.0
    discount: Tensor  # (M, B): gamma for one-step returns
    weight: Tensor  # (M, B): ones when sampling is uniform
    index: Tensor  # type: ignore[assignment]  # (M, B): rows of the replay; hides tuple.index


class Source(Protocol):
    """Where the learner gets its batches from, and what it tells about them."""

    @property
    def device(self) -> torch.device: ...
    @property
    def capture_safe(self) -> bool: ...  # whether CUDA graphs may record sample and feedback
    def sample(self) -> Batch: ...  # overwritten by the next call
    def feedback(self, index: Tensor, td: Tensor, /) -> None: ...  # rows (M, B), errors (M, C, B); the learner's device
    def find_highest(self, members: Sequence[int], /) -> None: ...  # finds their highest priorities, if it has any
    # Returns what puts back to what it is now whatever sampling and feedback change of these members.
    def keep(self, members: Sequence[int], /) -> Callable[[], None]: ...
    def state(self) -> State: ...
    def restore(self, state: State, /) -> None: ...


class Draws(NamedTuple):
    """All randomness of one update."""

    target_noise: Tensor  # (M, B, action_size), standard normal
    critic_choice: Tensor | None = None  # (M, C), standard normal; only for aggregates that choose critics
    shift: Tensor | None = None  # (M, B, 4), standard normal: shifts of s and of s2, two axes each; only for images


class UpdateTrace(NamedTuple):
    """What each step of one update produced, in the paper's letters; valid until the next update."""

    pi2: Tensor  # (M, B, action_size), step 5: the target actor's action at s2
    eps: Tensor  # (M, B, action_size), step 6: the clipped noise
    a2: Tensor  # (M, B, action_size), step 6: the smoothed action
    q2: Tensor  # (M, C, B), step 7
    v2: Tensor  # (M, B), step 8: the value of s2
    y: Tensor  # (M, B), step 9
    q: Tensor  # (M, C, B), step 10
    td: Tensor  # (M, C, B), q - y
    loss: Tensor  # (M, C, B), step 11: of each critic and transition, before weighting
    weight: Tensor  # (M, B)
    pi: Tensor | None = None  # (M, B, action_size), step 13; None unless the actor was updated
    q_pi: Tensor | None = None  # (M, B), step 13: what the actor maximises
    actor_loss: Tensor | None = None  # (M,), step 13

    @property
    def losses(self) -> dict[str, Tensor]:
        """(M,) each: step 11, summed over the critics; and what step 13 minimises, if it was taken."""
        critic = (self.weight.unsqueeze(1) * self.loss).mean(-1).sum(-1)
        return {"critic": critic} if self.actor_loss is None else {"critic": critic, "actor": self.actor_loss}


class Evaluation(NamedTuple):
    """One member's evaluation at one step of training."""

    step: int
    member: int
    snapshot: PolicySnapshot
    episodes: list[EpisodeResult]
    set: str = ""  # of eval.sets
    chooses: bool = True  # whether the best policies are chosen by it

    @property
    def returns(self) -> NDArray[np.float64]:  # (E,)
        return np.array([episode.total_reward for episode in self.episodes])

    @property
    def metrics(self) -> dict[str, float]:
        return mean_metrics([episode.metrics for episode in self.episodes])


class ActorNews(NamedTuple):
    """Something that has happened to an actor process."""

    actor: int
    what: str  # lost | back | given-up | warning
    text: str
    restarts: int  # of this actor so far


@dataclass(frozen=True)
class Requests:
    """Requests to a run from outside: to stop, or to save a checkpoint and continue; and what its program tells it."""

    stop: threading.Event
    save: threading.Event
    told: deque[tuple[type[Any], dict[str, Any]]] = field(default_factory=deque)  # kinds of events, and their values
