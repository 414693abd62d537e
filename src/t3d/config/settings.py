"""Every setting of a run, in frozen and typed dataclasses. Imports no torch."""

from __future__ import annotations

import re
from dataclasses import field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from t3d.config.algorithm import ReplayConfig, RuleConfig, TD3Config, TD7Config
from t3d.config.fields import About, Section, known_settings, setting
from t3d.config.metrics import Criterion, Target, parse_criterion, parse_metrics, parse_target
from t3d.config.schedules import Schedule, parse_schedules
from t3d.config.sweeps import ENV_ARGS, Member, by_values, format_sweep, members_of, parse_all, refuse_field
from t3d.errors import UserError, did_you_mean
from t3d.modules import is_own

MOST_ACTORS = 1024  # processes; chosen
POLICY_FILE = ".safetensors"  # how the name of one ends
CRITICS_FIRST = 5_000  # updates of new critics before an actor from a policy file learns: docs/lab/learning.md
AHEAD = 96  # transitions that actors may be ahead; chosen
AHEAD_EACH, AHEAD_SHARE = 400, 50  # for each Ray actor: two orders of 200; in all at most a 50th of the run; chosen
SinkName = Literal["tensorboard", "wandb"]  # of a module in sinks/, a package, and a folder of the run
SINKS: tuple[SinkName, ...] = get_args(SinkName)
SET_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")  # of an evaluation set: it is in names of metrics
SectionType = TypeVar("SectionType", bound=Section)
OF_ALGORITHMS = ("td3", "td7")  # sections
SEEDS_END = 2**62  # seeds below this fit into logs, file names and checkpoints


class NoiseConfig(Section, prefix="noise."):
    """Exploration noise on the policy's actions."""

    kind: Literal["gaussian", "ou", "pink"] = "gaussian"
    """The noise process; independent for every environment."""
    exploration_noise: float = setting(0.1, between=(0, 10), sweep=True, live=True, extreme=0.3)
    """Its scale, as a fraction of half the action range (σ)."""
    final_noise: float = setting(0.0, between=(0, 10), sweep=True, used_with=("decay_steps",), live=True, extreme=0.3)
    """Final noise scale of the linear schedule (used if decay_steps > 0)."""
    decay_steps: int = setting(0, between=(0, 10**12), sweep=True, extreme=200)
    """Steps until final_noise is reached; 0 keeps the scale constant."""
    per_env: bool = False
    """Give each seed's environments different scales, from 0.25 to 4 times the noise scale."""


class EnvConfig(Section, prefix="env."):
    """The environment to train on."""

    id: str = setting("", resume="edited", learning=False, in_heading=True)
    """A Gymnasium id, dm:domain-task, module:id, module:callable, or FILE.py:callable."""
    args: dict[str, Any] = field(default_factory=dict, metadata=About(resume="edited"))
    """Arguments it is made with, e.g. wind=1.5 goal=door: strings, numbers, true or false, lists and tables."""
    schedule: dict[str, Any] = field(default_factory=dict)
    """Arguments of training episodes: NAME=FROM..TO@STEPS, uniform:LOW:HIGH, loguniform:LOW:HIGH or choice:V1,V2."""
    wrappers: tuple[str, ...] = setting((), resume="edited")
    """Wrappers around it, the first one innermost: module:Wrapper or FILE.py:Wrapper."""
    name: str = setting("", resume="ignored", learning=False, in_heading=True)
    """Name in titles and folder names; if empty, the id, or the class of the environment that make_env returns."""
    num_envs: int = setting(0, between=(0, 10_000))
    """Environments per seed; the ratio of updates to steps does not depend on it. 0: one, or one for each actor."""
    pixels: int = setting(0, between=(0, 128))
    """Observe rendered images of this many pixels each way instead of the environment's own observations; 0: off."""
    camera: str = setting("", used_with=("pixels",))
    """Camera of those images, by its name or number, where the environment has several."""
    frame_stack: int = setting(1, between=(1, 16))
    """Frames in an observation with images, the newest and the ones before it, so that motion can be seen."""
    action_repeat: int = setting(1, between=(1, 1000), extreme=2)
    """Environment steps per action (1 = no repeat); they count as one step, and their rewards are summed."""
    max_action_change: float = setting(0.0, between=(0, 1), extreme=0.2)
    """Largest change of an action per step, as a fraction of its range; the last action is observed. 0: no limit."""
    bad_values: Literal["raise", "skip", "clip"] = setting("raise", resume="changed")
    """When the environment returns an invalid value, e.g. NaN: end the run, end the episode, or fix the value."""
    hang_seconds: float = setting(8.0, between=(1, 10**6), resume="changed", learning=False)
    """An actor process whose environment takes longer for one step or reset is killed and restarted."""
    metrics: tuple[str, ...] = setting((), resume="edited", learning=False)
    """Numbers of info to report, by how an episode reduces each: NAME:sum, mean, min, max or last."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_metrics(self.metrics)
        _ = self.schedules  # raises if one cannot be read
        if 0 < self.pixels < 32:
            raise UserError(f"env.pixels={self.pixels} is too small; images have 32 to 128 pixels each way")
        for wrapper in self.wrappers:
            if not is_own(wrapper):
                raise UserError(f"env.wrappers={wrapper} is not a wrapper; write module:Wrapper or FILE.py:Wrapper")

    @cached_property
    def schedules(self) -> dict[str, Schedule]:
        return parse_schedules(self.schedule)

    @property
    def title(self) -> str:
        return with_args(self.label, self.args)

    @property
    def label(self) -> str:
        return self.name or short_id(self.id) or "custom"


def with_args(label: str, args: dict[str, Any]) -> str:
    """Adds arguments to the name of an environment: drone:Drone(wind=1.5)."""
    given = ", ".join(f"{name}={value}" for name, value in args.items())
    return f"{label}({given})" if given else label


def short_id(env_id: str) -> str:
    """Shortens the path in an id to its module: drone:Drone for /home/me/drone.py:Drone."""
    where, colon, name = env_id.rpartition(":") if not env_id.endswith(".py") else (env_id, "", "")
    if not where.endswith(".py"):
        return env_id
    file = Path(where)
    return f"{file.parent.name if file.stem == '__init__' else file.stem}{colon}{name}"


class EvalConfig(Section, prefix="eval."):
    """Evaluation, in separate environments, with the same seeds each time and no noise."""

    every_steps: int = setting(5_000, between=(1, 10**12), learning=False)
    """Steps between evaluations; there is also one at step 0 and one at the end."""
    episodes: int = setting(10, between=(1, 100_000))
    """Episodes per evaluation, for each seed."""
    seed: int = setting(0, between=(0, 2**31 - 1))
    """Seed of the evaluation episodes, shared by all training seeds and runs so that they are comparable."""
    max_steps: int = setting(10_000, between=(1, 10**12))
    """Maximum length of an evaluation episode, for environments without a time limit."""
    best_by: str = setting("return", learning=False)
    """What the best policy is chosen by: return, success or a name of env.metrics; with :min its lowest value."""
    env: str = ""
    """Another environment to evaluate in, with the same observations and actions; env.args are not for it."""
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments of the environments of evaluations, on top of env.args."""
    sets: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Named conditions: more arguments, e.g. calm:wind=0 windy:wind=2,gust=1. The first set chooses the best."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.sets:
            if not SET_NAME.fullmatch(name):
                raise UserError(f"eval.sets: {name!r:.60} cannot be the name of a set; use letters, digits, - and _")

    @property
    def set_names(self) -> tuple[str, ...]:
        """The sets in which policies are evaluated, the one that chooses the best first; without sets one, unnamed."""
        return (*self.sets,) or ("",)

    @property
    def all_episodes(self) -> int:
        return self.episodes * len(self.set_names)


class LogConfig(Section, prefix="log."):
    """How often a run reports on its learning."""

    every_steps: int = setting(1_000, between=(1, 10**12), learning=False)
    """Steps between reports."""
    diagnose_every_steps: int = setting(5_000, between=(0, 10**12), resume="changed", learning=False)
    """Steps between diagnostics (docs/metrics.md); 0: none. They change nothing that is learned."""


class CheckpointConfig(Section, prefix="checkpoint."):
    """Checkpoints: everything needed to resume a run exactly where it was."""

    every_steps: int = setting(10_000, between=(1, 10**12), learning=False)
    """Steps between checkpoints; there is also one when the run stops. The last three are kept."""


class RunConfig(Section, prefix="run."):
    """Where the run is written."""

    root: str = setting("runs", resume="ignored", learning=False, in_heading=True)
    """Folder that contains the runs."""
    name: str = setting("", resume="ignored", learning=False, in_heading=True)
    """Folder of this run inside root; if empty, <env>-<preset>-<time>."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name != Path(self.name).name:
            raise UserError(f"run.name={self.name!r} must be a plain folder name; use run.root for the folder it is in")


class Config(Section):
    """All settings of a run."""

    seeds: tuple[int, ...] = setting((0,), between=(0, SEEDS_END - 1), learning=False)
    """One policy is trained per seed, all in one run."""
    sweep: tuple[str, ...] = setting((), learning=False, in_heading=True)
    """E.g. td3.gamma=0.98,0.99: trains every seed with each value; a:b=1:3,2:4 changes a and b together."""
    total_steps: int = setting(1_000_000, between=(1, 10**12), resume="changed")
    """Environment steps per seed."""
    random_steps: int = setting(25_000, between=(0, 10**12), extreme=90)
    """Steps with uniformly random actions before learning starts; what starts from a run acts with its policy."""
    start_from: str = setting("", resume="ignored")
    """Start with what another run has learned: its folder or name, one of its checkpoints, or a policy file."""
    start_seed: str = setting("", used_with=("start_from",))
    """All seeds start from this one of that run; if empty, each from its own, or from the only one."""
    start_replay: bool = setting(False, used_with=("start_from",))
    """Start with its replay, too; learning then starts at once, without random_steps."""
    start_actor_after: int = setting(-1, between=(-1, 10**12), used_with=("start_from",))
    """Updates until the actor learns, too; -1: 5,000 from a policy file, whose critics are new, 0 from a run."""
    updates_per_step: float = setting(1.0, between=(0, 1000), extreme=0.5)
    """Updates per environment step after the random steps."""
    normalise_observations: bool = setting(False, must_fit=True)
    """Normalise observations by their running mean and standard deviation (not in the paper)."""
    scale_rewards: bool = setting(False, sweep=True, must_fit=True)
    """Divide rewards by the running standard deviation of the discounted return (not in the paper)."""
    actors: str = setting("inline", resume="changed")
    """inline: act in the learner's process (deterministic); local:N: in N processes beside it; ray:N: on a cluster."""
    ray_address: str = setting("", resume="changed")
    """The Ray cluster that actors=ray:N joins, e.g. 10.0.0.1:6379; if empty, T3D starts one on this machine."""
    ray_cpus: float = setting(1.0, between=(0, 1024), resume="changed")
    """CPUs of the cluster that each of its actors reserves; may be a fraction."""
    max_ahead: int = setting(0, between=(0, 10**9), resume="ignored")
    """Transitions of a seed that actors may collect ahead of the updates; 0: 96, or up to 400 for each Ray actor."""
    device: Literal["auto", "cpu", "cuda"] = setting("auto", left_to_machine=True, learning=False, in_heading=True)
    """Where networks and replay live; auto uses the GPU if there is one."""
    threads: int = setting(
        0, between=(0, 4096), resume="ignored", left_to_machine=True, learning=False, in_heading=True
    )
    """CPU threads for torch; 0: time one thread and all threads at the start and keep the faster."""
    algo: str = setting("td3", resume="moved", must_fit=True)
    """The algorithm: td3, td7, or FILE.py:NAME for a rule of your own."""
    engine: Literal["auto", "eager", "fused", "capture"] = setting(
        "auto", resume="ignored", left_to_machine=True, learning=False, in_heading=True
    )
    """auto: the fastest that computes this: fused (CPU, TD3), capture (GPU), eager (both)."""
    tf32: bool = False
    """Let a GPU round the inputs of matrix products and convolutions to 10 bits (TF32): faster, less precise."""
    record_every: int = setting(0, between=(0, 10**9), resume="changed", learning=False)
    """Record videos of every N-th evaluation while it trains, in a process beside it; 0: none."""
    sinks: tuple[str, ...] = setting((), resume="changed", learning=False)
    """Tools to write the run for as it trains: tensorboard, wandb (offline), or both."""
    stop_when: str = setting("", resume="changed", learning=False)
    """E.g. success=0.95: ends the run when the mean over seeds reaches it in three evaluations in a row."""
    keep_policies: int = setting(0, between=(0, 10**12), resume="changed", learning=False)
    """Keep every seed's policy each time so many steps have passed, in policies/; 0: only the best and the last."""
    preset: str = setting("default", learning=False, in_heading=True)
    """Named settings to start from: default, paper, plus, bullet, box2d, dm, pixels, quick; t3d presets lists them."""
    env: EnvConfig = field(default_factory=EnvConfig)
    td3: TD3Config = field(default_factory=TD3Config)
    td7: TD7Config = field(default_factory=TD7Config)
    own: dict[str, Any] = field(default_factory=dict)
    """Settings of a rule of your own, as its file declares them: docs/beyond-the-defaults.md."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    noise: NoiseConfig = field(default_factory=NoiseConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    log: LogConfig = field(default_factory=LogConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    run: RunConfig = field(default_factory=RunConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not {*self.sinks} <= {*SINKS} or len({*self.sinks}) < len(self.sinks):
            raise UserError(f"sinks={' '.join(self.sinks)} is not one or more of {', '.join(SINKS)}, each once")
        if self.actors != "inline" and not 1 <= self.async_actors <= MOST_ACTORS:
            raise UserError(f"actors={self.actors} is not inline, local:N or ray:N with N from 1 to {MOST_ACTORS}")
        if self.ray_address and self.actors_kind != "ray":
            raise UserError(f"ray_address={self.ray_address} is used only with actors=ray:N")
        if not self.seeds or len({*self.seeds}) < len(self.seeds):
            raise UserError(f"seeds={[*self.seeds]} is empty or repeats a seed; give one or more, each only once")
        self._check_sweep()
        self._check_together()

    def _check_sweep(self) -> None:
        object.__setattr__(self, "sweep", tuple(format_sweep(*each) for each in parse_all(self.sweep).items()))
        known = known_settings(type(self))
        can_be_swept = [name for name, about in known.items() if about.get("sweep")]
        can_be_swept.sort(key=lambda name: not name.startswith("td3."))
        for name in self._sweeps:
            if name.startswith(ENV_ARGS) and (argument := name.removeprefix(ENV_ARGS)) in self.env.schedule:
                raise UserError(f"{argument} is swept and in env.schedule; leave it out of one of them")
            of_own_rule = name.startswith(RuleConfig.prefix) and is_own(self.algo)
            if name.startswith(ENV_ARGS) or of_own_rule:  # known when the environment or the rule is imported
                continue
            if name not in known:
                hint = did_you_mean(name if "." in name else f"td3.{name}", can_be_swept)
                raise UserError(f"there is no setting {name}{hint}")
            if not is_own(self.algo) or not name.startswith("td3."):  # which of these an own rule reads is known later
                refuse_field(name, [known for known in can_be_swept if self.reads(known)])
                other = known[name].get("no_effect_without")
                full = f"{self.section}.{other}"
                if other is not None and 0 in self._sweeps.get(full, (getattr(self.settings_of(), other),)):
                    raise UserError(
                        f"{name} changes nothing where {full}=0, so members would be the same; "
                        f"leave it out of the sweep, or give {full} a value above 0"
                    )
        for values in by_values(self.members):  # raises if they are too many
            member = Member(0, tuple(pair for pair in values if pair[0] in can_be_swept))
            for of_member in (self.settings_of, self.noise_of, self.replay_of):
                of_member(member)  # raises if it is out of range
        if not {*self._sweeps.get("scale_rewards", ())} <= {0, 1}:
            raise UserError("scale_rewards is on or off; sweep it as scale_rewards=0,1")

    def reads(self, name: str) -> bool:
        """Whether a setting is not one of another built-in algorithm."""
        section = name.partition(".")[0]
        return section == self.section or section not in OF_ALGORITHMS

    def _check_together(self) -> None:
        if self.steps_before_learning >= self.total_steps:
            or_else = " or train longer" if self.preset == "quick" else ", train longer, or use --preset quick"
            raise UserError(
                f"random_steps={self.random_steps} leaves no steps of total_steps={self.total_steps} "
                f"for learning; lower it with --random-steps{or_else}"
            )
        batch_size = self.settings_of().batch_size
        if self.replay.capacity < batch_size and self.replay.sampling != "uniform":  # which draws some rows twice
            raise UserError(
                f"replay.capacity={self.replay.capacity} is smaller than {self.section}.batch_size={batch_size}; "
                "raise capacity or lower the batch size"
            )
        if self.chooses_itself and self.replay.sampling != "uniform":
            own = f"{self.section}.priority_exponent"
            raise UserError(f"algo={self.algo} chooses transitions by {own}, not by replay.sampling; leave that out")
        if self.chooses_itself and any(map(self.scales_rewards, self.members)):
            raise UserError(
                f"algo={self.algo} treats errors below 1 alike, and scaled rewards leave few others; use it without "
                f"--scale-rewards, or with --{self.section}.priority-exponent 0"
            )
        has_huber = getattr(self.settings_of(), "critic_loss", "huber") == "huber"
        if self.replay.sampling == "lap" and not (has_huber and not any(map(self.scales_rewards, self.members))):
            raise UserError(
                "replay.sampling=lap makes up for what td3.critic_loss=huber leaves out, and treats errors below 1 "
                "alike; use it with --td3.critic-loss huber and without --scale-rewards, or use proportional"
            )
        _ = self.target  # raises if it, or what is the best, is no metric

    @cached_property
    def criterion(self) -> Criterion:
        return parse_criterion(self.eval.best_by, parse_metrics(self.env.metrics))

    @cached_property
    def target(self) -> Target | None:
        return parse_target(self.stop_when, parse_metrics(self.env.metrics), self.criterion)

    @cached_property
    def _sweeps(self) -> dict[str, tuple[float, ...]]:
        """The values of each swept setting, in all members."""
        columns = (
            zip(names, zip(*points, strict=True), strict=True) for names, points in parse_all(self.sweep).items()
        )
        return {name: values for column in columns for name, values in column}

    @cached_property
    def members(self) -> tuple[Member, ...]:
        """What the run trains, in the order in which every array has them."""
        return members_of(self.seeds, parse_all(self.sweep))

    @property
    def member_seeds(self) -> list[int]:
        return [member.seed for member in self.members]

    @property
    def member_names(self) -> list[str]:
        return [member.name for member in self.members]

    @property
    def section(self) -> str:
        """Where the settings of the algorithm are; a rule of the user's own without settings of its own reads td3."""
        return "own" if self.own else self.algo if self.algo in OF_ALGORITHMS else "td3"

    def settings_of(self, member: Member | None = None, kind: type[RuleConfig] = RuleConfig) -> Any:
        """The settings of the algorithm, or of a member of a sweep; without `kind`, the user's own class, of its own
        settings those that every algorithm has.
        """
        settings: Any = getattr(self, self.section)
        if self.section == "own":
            names = {known.name for known in fields(kind)}
            settings = kind(**{name: value for name, value in self.own.items() if name in names})
        return settings if member is None else _with_values(settings, member)

    @property
    def chooses_itself(self) -> bool:
        """Whether the algorithm's own settings say how much errors count in the choice of transitions (LAP)."""
        return bool(getattr(self.settings_of(), "priority_exponent", 0))

    @property
    def sampling(self) -> ReplayConfig:
        """How transitions are chosen, by the settings of the replay or those of the algorithm."""
        if not self.chooses_itself:
            return self.replay
        return replace(self.replay, sampling="lap", priority_exponent=self.settings_of().priority_exponent)

    def noise_of(self, member: Member) -> NoiseConfig:
        return _with_values(self.noise, member)

    def replay_of(self, member: Member) -> ReplayConfig:
        return _with_values(self.replay, member)

    def scales_rewards(self, member: Member) -> bool:
        return bool(dict(member.values).get("scale_rewards", self.scale_rewards))

    def of(self, member: Member) -> Config:
        """The settings of a member, as a run of its own has them."""
        learned: Any = self.own | _in_section(member, "own.") if self.own else self.settings_of(member)
        whole: dict[str, Any] = {self.section: learned, "seeds": (member.seed,), "sweep": ()}
        whole |= {"env": self.env_of(member), "noise": self.noise_of(member), "replay": self.replay_of(member)}
        return replace(self, scale_rewards=self.scales_rewards(member), **whole)

    @property
    def networks(self) -> dict[str, str]:
        """The kinds of networks that the algorithm lets settings choose, by the names of these settings."""
        values = self.own if self.section == "own" else vars(getattr(self, self.section))
        return {name: str(values[name]) for name in ("actor_network", "critic_network") if name in values}

    @property
    def actor_network(self) -> str:
        return self.networks.get("actor_network", "")

    def env_of(self, member: Member) -> EnvConfig:
        """Where a member acts; an argument that is swept in whole numbers is an integer."""
        args: dict[str, Any] = _in_section(member, ENV_ARGS)
        for name, value in args.items():
            if all(other % 1 == 0 for other in self._sweeps.get(ENV_ARGS + name, (value,))):
                args[name] = int(value)
        return replace(self.env, args={**self.env.args, **args}) if args else self.env

    def eval_env(self, member: Member, set_name: str = "") -> EnvConfig:
        """Where a member is evaluated: under the conditions of this set or, if it has no name, of the first one."""
        env, cfg = self.env_of(member), self.eval
        args = {**({} if cfg.env else env.args), **cfg.args, **cfg.sets.get(set_name or cfg.set_names[0], {})}
        return replace(env, id=cfg.env or env.id, name="" if cfg.env else env.name, args=args)

    @property
    def starts_from_policy(self) -> bool:
        return self.start_from.endswith(POLICY_FILE)

    @property
    def actor_rests(self) -> int:
        """Updates in which only the critics learn, at the start of the run."""
        new_critics = CRITICS_FIRST if self.starts_from_policy else 0
        return new_critics if self.start_actor_after < 0 else self.start_actor_after

    @property
    def steps_before_learning(self) -> int:
        return 0 if self.start_replay else self.random_steps

    @property
    def random_actions(self) -> int:
        """Steps of a seed with random actions; critics that were trained need none, new ones do."""
        return 0 if self.start_from and not self.starts_from_policy else self.random_steps

    @property
    def rule_title(self) -> str:
        return Path(self.algo).name if is_own(self.algo) else self.algo.upper()

    @property
    def actors_kind(self) -> str:
        return self.actors.partition(":")[0]

    @property
    def most_ahead(self) -> int:
        """How many transitions of a seed actors may be ahead of the updates."""
        each = AHEAD_EACH * min(self.async_actors, self.num_envs) if self.actors_kind == "ray" else 0
        return self.max_ahead or max(AHEAD, min(each, self.total_steps // AHEAD_SHARE))

    @property
    def num_envs(self) -> int:
        """The environments of each seed: as many as its actors need, unless env.num_envs says how many."""
        return self.env.num_envs or max(1, -(-self.async_actors // len(self.members)))

    @property
    def async_actors(self) -> int:
        """The actors outside the learner's process: the N of local:N and ray:N; 0 for inline."""
        match = re.fullmatch(r"(?:local|ray):([0-9]{1,8})", self.actors)
        return int(match[1]) if match else 0


def _with_values(section: SectionType, member: Member) -> SectionType:
    """Returns a section with the values of a member among its settings, in the types that these have."""
    own: dict[str, Any] = {}
    for name, value in _in_section(member, section.prefix).items():
        if hasattr(section, name):  # of a rule's own settings only some are known here
            own[name] = int(value) if type(getattr(section, name)) is int and value % 1 == 0 else value
    return replace(section, **own) if own else section


def _in_section(member: Member, prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in member.values if name.startswith(prefix)}
