"""What a run reports: one frozen dataclass per kind of event, one JSON line per event in events.jsonl."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, ClassVar, dataclass_transform

from t3d.files import fields_in

NEW_TASK = "so the best policies are chosen anew"  # in the note of a resumed run whose environment has changed
KINDS: dict[str, type[Event]] = {}  # by their names in events.jsonl


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """Common to all, whose classes become such dataclasses: the step, and the member and seed (None: the whole run)."""

    event: ClassVar[str]
    step: int
    member: int | None = None
    seed: int | None = None
    time: float = field(default_factory=time.time)

    def __init_subclass__(cls, kind: str | None = None) -> None:
        dataclass(frozen=True, kw_only=True)(cls)
        if kind is not None:
            cls.event, KINDS[kind] = kind, cls


class Session(Event):
    """What a run says of itself when a process starts or resumes it."""

    folder: str
    config: dict[str, Any]
    members: list[str] = field(default_factory=list)  # their names, in the order of `member` in other events
    versions: dict[str, str]
    pid: int
    host: str = ""  # empty in runs from before 0.1
    parameters: int  # that one member learns
    replay_bytes: int
    engine_reason: str = ""  # why a faster engine is not used; empty: the fastest is
    environment: dict[str, Any] = field(default_factory=dict)  # its fingerprint; empty in runs from before 0.5
    origin: dict[str, Any] = field(default_factory=dict)  # what it started from; empty: from scratch
    files: dict[str, str] = field(default_factory=dict)  # where the user's own modules are, by their names in config


class Start(Session, kind="start"):
    """A run starts."""

    schema: int = 1


class Resumed(Session, kind="resumed"):
    """A run resumes from a checkpoint, in a new process."""

    checkpoint: str  # its name; empty: there was none, and the run starts again
    best: list[float]  # each member's highest evaluation so far
    notes: list[str]  # what differs: a damaged file, another version, an episode that could not be reproduced


class Saved(Event, kind="saved"):
    """A checkpoint was written completely."""

    checkpoint: str
    reason: str  # schedule | asked | end
    new_bytes: int  # written for it; older replay segments are shared
    save_seconds: float


class SaveFailed(Event, kind="save-failed"):
    """A checkpoint, a policy or a line of a log could not be written; the run continues without it."""

    text: str
    failures: int  # of this process so far


class Paused(Event, kind="paused"):
    """The run was asked to pause, and waits."""


class Continued(Event, kind="continued"):
    """A paused run continues, or is stopped."""

    paused_seconds: float  # which do not count as training time


class BadValueFound(Event, kind="bad-value"):
    """An environment returned a value that must not reach the replay."""

    env: int
    episode: int
    episode_step: int
    field: str
    text: str
    handling: str  # raise | skip | clip
    count: int  # of this environment so far; after the tenth only the 100th, 1,000th, ... are reported


class EpisodeEnd(Event, kind="episode"):
    """A training episode, with exploration noise, has ended."""

    env: int
    episode: int
    total_reward: float
    length: int
    terminated: bool
    metrics: dict[str, float] = field(default_factory=dict)  # what `info` said of it
    args: dict[str, Any] = field(default_factory=dict)  # those of env.schedule that it had


class Update(Event, kind="update"):
    """The losses and values of the first update after each log step that also moved the actor."""

    updates: int
    critic_loss: float
    actor_loss: float  # not a number while the actor rests
    q_mean: float
    y_mean: float
    td_abs_mean: float
    steps_per_second: float
    other_losses: dict[str, float] = field(default_factory=dict)  # of rules that have more


class TraceSummary(Event, kind="steps"):
    """The tensors of the fifteen steps in the newest update: shape, mean, std and first values by name."""

    updates: int
    values: dict[str, dict[str, Any]]


class Diagnosed(Event, kind="diagnostics"):
    """A closer look at one member's learning, every log.diagnose_every_steps steps; docs/metrics.md explains each."""

    updates: int
    # what the critics predict for the newest visited states and actions whose discounted return is known
    q_predicted: float | None  # None: no such return is known yet
    q_return: float | None
    q_bias: float | None  # predicted minus returned, without the critics' own share of the return
    q_rows: int  # transitions compared
    # over the batch of the newest update
    disagreement: float  # standard deviation over the critics, on average
    saturated: float  # share of the actor's action components beyond 0.99 of the range
    stuck_actions: float  # share of the action components beyond 0.99 of the range in one direction, in every state
    dead_units: dict[str, float]  # by network: share of the hidden units that pass nothing
    gradient_norms: dict[str, float]  # by network
    weight_norms: dict[str, float]
    td_quantiles: list[float]  # 5, 25, 50, 75 and 95 % of the TD errors
    sampled_age: list[float]  # 5, 50 and 95 % of how many steps ago the sampled transitions were collected
    action_counts: list[int]  # histogram of the stored actions over [-1, 1]
    reward_counts: list[int]  # histogram of the stored rewards over reward_range
    reward_range: list[float]
    largest_reward: float  # of all so far, without its sign; scaled if scale_rewards is on
    constant_observations: list[int]  # components that are the same in the whole batch
    acting_share: float  # of the time since the last look: spent in acting, or in waiting for actors
    seconds: float  # that this look took, for all members


class Alarm(Event, kind="alarm"):
    """Something looks wrong: what, in a sentence, and what to try."""

    kind: str  # a name from t3d.alarms.symptoms
    text: str
    advice: str


class SeedStopped(Event, kind="seed-stopped"):
    """A seed has diverged: it acts, is evaluated and counts no more; the others go on."""

    text: str  # what is not finite


class ActingEvent(Event, kind="acting"):
    """How well actor processes and the learner kept pace since some step."""

    since: int  # the step of the last such event, or where this process started
    summary: bool = False  # True in the last one, which covers everything since this process started
    ratio: float  # updates per step after the random steps, as achieved since then
    age_median: int  # updates that the learner was ahead of the acting policy when its transition arrived
    age_p99: int
    ring_fill: float | None  # share of the ring buffers that was full when the learner looked; None: there are none
    actors_waited: float  # share of their time that actors waited for the learner
    learner_waited: float  # share of its time that the learner waited for transitions
    actors: int  # running processes
    restarts: int  # so far
    bytes_per_step: float | None = None  # that crossed the network for a transition; None: none did
    bytes_per_version: float | None = None  # of a policy that was sent


class ActorEvent(Event, kind="actor"):
    """Something has happened to an actor process."""

    actor: int
    what: str  # lost | back | given-up | warning
    text: str
    restarts: int  # of this actor so far


class Eval(Event, kind="eval"):
    """A deterministic evaluation of one member."""

    updates: int
    mean_return: float
    std_return: float
    min_return: float
    max_return: float
    mean_length: float
    returns: list[float]
    lengths: list[int]
    best: bool  # better than all previous ones, by eval.best_by
    bad_values: int = 0  # found in the evaluation's episodes and kept out
    metrics: dict[str, float] = field(default_factory=dict)  # what `info` said: means over the episodes that have it
    metric_counts: dict[str, int] = field(default_factory=dict)  # how many have it
    set: str = ""  # the conditions, of eval.sets; empty: there are no sets
    chooses: bool = True  # whether the best policies are chosen by it, as by those of the first set


class Logged(Event, kind="logged"):
    """Numbers of the user's program, from run.log()."""

    metrics: dict[str, float]


class SettingsChanged(Event, kind="changed"):
    """The user's program has changed settings with run.set(); they hold from here on."""

    values: dict[str, Any]  # by their names, e.g. td3.actor_lr


class Note(Event, kind="note"):
    """Something worth knowing, in a sentence."""

    text: str


class End(Event, kind="end"):
    """The run is over."""

    reason: str  # finished | stopped | failed
    text: str = ""  # what failed
    saved: bool = True  # whether a checkpoint holds the final state
    diverged: list[str] = field(default_factory=list)  # names of members that have stopped
    updates: int
    seconds: float


def to_line(event: Event) -> str:
    """Formats one line of JSON without the newline; non-finite floats become null."""
    fields = {"event": event.event, **dataclasses.asdict(event)}
    return json.dumps(finite(fields), allow_nan=False)


def from_line(line: str) -> Event | None:
    """Reverses to_line, except for non-finite floats, which become None.

    The line may be from a newer T3D: unknown fields are dropped, and an unknown kind gives None.
    """
    fields = fields_in(line)
    if not isinstance(name := fields.pop("event"), str):
        raise ValueError("the kind of an event is not a text")
    if (kind := KINDS.get(name)) is None:
        return None
    with suppress(TypeError):  # a field is unknown, or one is missing
        return kind(**fields)
    known = {field.name for field in dataclasses.fields(kind)}
    try:
        return kind(**{name: value for name, value in fields.items() if name in known})
    except TypeError as error:
        raise ValueError(str(error)) from None


def finite(value: Any) -> Any:
    """Replaces the non-finite floats in what is to become JSON by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
