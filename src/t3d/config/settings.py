"""Every setting of a run: frozen, typed, whole. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from t3d.config.checks import check_range, convert
from t3d.errors import UserError

MOST_ACTORS = 1024  # processes; chosen
MOST_SEEDS = 1000  # chosen
SEEDS_END = 2**62  # what logs, file names and checkpoints can all carry


@dataclass(frozen=True)
class TD3Config:
    """The algorithm. Defaults are those of the authors' later code."""

    gamma: float = 0.99
    """Discount of the future (γ)."""
    tau: float = 0.005
    """How far the targets move towards the online networks (τ)."""
    batch_size: int = 256
    """Transitions per update and member (N)."""
    actor_lr: float = 3e-4
    """Adam's learning rate for the actor."""
    critic_lr: float = 3e-4
    """Adam's learning rate for the critics."""
    policy_delay: int = 2
    """Critic updates for each update of the actor and the targets (d)."""
    target_noise: float = 0.2
    """Noise on the target action, as a fraction of half the action range (σ̃)."""
    target_noise_clip: float = 0.5
    """Limit of that noise (c)."""
    critics: int = 2
    """Critics per member; two are TD3's twins."""
    aggregate: Literal["min"] = "min"
    """How the target critics' values become one (step 8)."""
    actor_hidden: tuple[int, ...] = (256, 256)
    """Hidden layer sizes of the actor."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Hidden layer sizes of each critic."""
    random_steps: int = 25_000
    """Steps with uniformly random actions before learning begins."""
    updates_per_step: float = 1.0
    """Updates for each step of a member after the random ones."""
    normalise_observations: bool = False
    """Scale observations by their running mean and deviation (not in the paper)."""

    def __post_init__(self) -> None:
        convert(self, "td3.")
        check_range(self, "td3.", gamma=(0, 1), tau=(0, 1), actor_lr=(0, 1), critic_lr=(0, 1))
        check_range(self, "td3.", batch_size=(1, 10**6), policy_delay=(1, 10**6), critics=(1, 1000))
        check_range(self, "td3.", target_noise=(0, 10), target_noise_clip=(0, 10))
        check_range(self, "td3.", random_steps=(0, 10**12), updates_per_step=(0, 1000))
        for name in ("actor_hidden", "critic_hidden"):
            for size in getattr(self, name):
                if not 1 <= size <= 65_536:
                    raise UserError(f"td3.{name} holds {size}; layer sizes go from 1 to 65536")


@dataclass(frozen=True)
class ReplayConfig:
    """The memory that updates learn from (step 1)."""

    capacity: int = 1_000_000
    """Transitions kept per member; the oldest are overwritten."""

    def __post_init__(self) -> None:
        convert(self, "replay.")
        check_range(self, "replay.", capacity=(1, 10**12))


@dataclass(frozen=True)
class NoiseConfig:
    """What is added to the policy's actions while collecting."""

    kind: Literal["gaussian", "ou", "pink"] = "gaussian"
    """The noise process; independent for every environment."""
    exploration_noise: float = 0.1
    """Its scale, as a fraction of half the action range (σ)."""
    final_noise: float = 0.0
    """The scale it moves to in a straight line when decay_steps is set."""
    decay_steps: int = 0
    """Steps until final_noise is reached; 0 keeps the scale."""
    per_env: bool = False
    """Gives each member's environments a ladder of scales, from a quarter to four times; also --noise per-env."""

    def __post_init__(self) -> None:
        convert(self, "noise.")
        check_range(self, "noise.", exploration_noise=(0, 10), final_noise=(0, 10), decay_steps=(0, 10**12))
        if self.final_noise and not self.decay_steps:
            raise UserError(
                f"noise.final_noise={self.final_noise} needs noise.decay_steps, the steps until it is reached"
            )


@dataclass(frozen=True)
class EnvConfig:
    """The world to act in."""

    id: str = ""
    """A Gymnasium id, dm:domain-task, module:id, module:callable, or FILE.py:callable."""
    name: str = ""
    """What to call it in titles and folder names; empty takes the id, or the name of a make_env given in Python."""
    num_envs: int = 1
    """Environments per member; the ratio of updates to steps does not depend on it."""
    action_repeat: int = 1
    """Times each action is played; their rewards add up, and a step of T3D is all of them."""
    bad_values: Literal["raise", "skip", "clip"] = "raise"
    """When the environment returns a NaN or worse: end the run, end the episode, or fix the value."""
    hang_seconds: float = 8.0
    """An actor process whose environment takes longer for one step or reset is ended and restarted."""

    def __post_init__(self) -> None:
        convert(self, "env.")
        check_range(self, "env.", num_envs=(1, 10_000), action_repeat=(1, 1000), hang_seconds=(1, 10**6))

    @property
    def title(self) -> str:
        """What to call it."""
        return self.name or self.id or "custom"


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation: own environments, the same seeds each time, no noise."""

    every_steps: int = 5_000
    """Steps between evaluations; one more is made at step 0 and at the end."""
    episodes: int = 10
    """Episodes per evaluation and member."""
    seed: int = 0
    """Decides the starts of evaluation episodes: the same for every seed of a run, and for every run."""
    max_steps: int = 10_000
    """An evaluation episode is cut here, for environments that never end one."""

    def __post_init__(self) -> None:
        convert(self, "eval.")
        check_range(self, "eval.", every_steps=(1, 10**12), episodes=(1, 100_000), max_steps=(1, 10**12))
        check_range(self, "eval.", seed=(0, 2**31 - 1))


@dataclass(frozen=True)
class LogConfig:
    """How often a run reports its losses."""

    every_steps: int = 1_000
    """Steps between reports."""

    def __post_init__(self) -> None:
        convert(self, "log.")
        check_range(self, "log.", every_steps=(1, 10**12))


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints: all that a run needs to go on exactly where it was."""

    every_steps: int = 10_000
    """Steps between checkpoints; one more is made when the run stops. The last three are kept."""

    def __post_init__(self) -> None:
        convert(self, "checkpoint.")
        check_range(self, "checkpoint.", every_steps=(1, 10**12))


@dataclass(frozen=True)
class RunConfig:
    """Where the run is written."""

    root: str = "runs"
    """Folder of all runs."""
    name: str = ""
    """Folder of this run inside root; empty makes <env>-<preset>-<time>."""

    def __post_init__(self) -> None:
        convert(self, "run.")
        if self.name != Path(self.name).name:
            raise UserError(f"run.name={self.name!r} must be a plain folder name; use run.root for the folder it is in")


@dataclass(frozen=True)
class Config:
    """A whole run."""

    seeds: tuple[int, ...] = (0,)
    """One policy (a member) is trained per seed, all in one run."""
    total_steps: int = 1_000_000
    """Environment steps per member."""
    actors: str = "inline"
    """Who collects: inline is this process (deterministic), local:N are N processes that act while it learns."""
    max_ahead: int = 96
    """Transitions that actor processes may be ahead of the ratio of updates to steps before they wait."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where networks and replay live; auto takes the GPU if there is one."""
    threads: int = 0
    """CPU threads for torch; 0 takes one or all, whichever is faster when tried at the start."""
    engine: Literal["auto", "eager", "fused", "graph"] = "auto"
    """How updates are made: eager is the readable code, fused is fast on the CPU, graph on the GPU; auto picks."""
    tf32: bool = False
    """Let a GPU round the inputs of matrix products to 10 bits (TF32): faster, and no longer exact."""
    preset: str = "default"
    """Named settings to start from: default, paper, quick, bullet, box2d, dm; t3d presets shows them."""
    env: EnvConfig = field(default_factory=EnvConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        convert(self, "")
        check_range(self, "", total_steps=(1, 10**12), threads=(0, 4096), max_ahead=(1, 10**9))
        if self.actors != "inline" and not 1 <= self.local_actors <= MOST_ACTORS:
            raise UserError(f"actors={self.actors} is neither inline nor local:N with N from 1 to {MOST_ACTORS}")
        if not self.seeds:
            raise UserError("seeds is empty; give at least one, e.g. --seeds 0")
        if len(self.seeds) > MOST_SEEDS:
            raise UserError(f"seeds holds {len(self.seeds):,} seeds, and a run has {MOST_SEEDS:,} at most")
        if min(self.seeds) < 0:
            raise UserError("seeds holds a negative number; seeds start at 0")
        if max(self.seeds) >= SEEDS_END:
            raise UserError(f"seeds holds a number that is too large; seeds go up to {SEEDS_END - 1:,} (2^62 - 1)")
        if len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"seeds={list(self.seeds)} repeats a seed; every member needs its own")
        if self.td3.random_steps >= self.total_steps:
            raise UserError(
                f"td3.random_steps={self.td3.random_steps} leaves nothing of total_steps={self.total_steps} to learn; "
                "lower it with --td3.random-steps, train for longer, or take --preset quick"
            )
        if self.replay.capacity < self.td3.batch_size:
            raise UserError(
                f"replay.capacity={self.replay.capacity} is smaller than td3.batch_size={self.td3.batch_size}; "
                "raise capacity or lower the batch size"
            )

    @property
    def local_actors(self) -> int:
        """N of local:N; 0 when this process collects itself."""
        kind, _, count = self.actors.partition(":")
        return int(count) if kind == "local" and count.isascii() and count.isdigit() and len(count) < 9 else 0
