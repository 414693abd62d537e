"""Policies of runs: found with the environment that they play in, evaluated, recorded, exported."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from t3d.config import Config, EnvConfig, Member, TD3Config, merge
from t3d.config.metrics import SUCCESS
from t3d.config.settings import with_args
from t3d.errors import UserError
from t3d.files import followed, readable
from t3d.insight.best_member import factory_of, fresh_episodes, known_choice, play, play_choice, save_played
from t3d.insight.statistics import Interval, estimate, mean, rate_interval
from t3d.insight.wording import metrics_text, number_text
from t3d.modules import find_again, is_own
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import read_policy
from t3d.ship.export import Exported, export_policy, refuse_own_network, refuse_place
from t3d.store.details import describe_video
from t3d.store.folder import versions
from t3d.store.log import newest_session, remembered_files
from t3d.store.reader import NO_ARGS, Run, open_run
from t3d.types import EpisodeResult, mean_metrics, sample_std, values_of
from t3d.world.fingerprint import fingerprint, least_differences
from t3d.world.guard import EnvFactory
from t3d.world.make import own_names
from t3d.world.simulators import choose_graphics

Which = Literal["best", "last"]
STEPS_PER_EPISODE = 1000  # of a video; longer ones are cut; chosen
SIMULATORS = ("gymnasium", "mujoco", "mujoco_core", "pybullet", "box2d", "dm_control")  # whose versions are compared


class PolicyEvaluation(NamedTuple):
    """How a policy did without noise, on episodes that training never saw; docs/output.md explains each field."""

    run: str
    member: str
    seed: int
    values: dict[str, float]
    policy: str
    step: int
    env: str
    episodes: int
    returns: list[float]
    lengths: list[int]
    mean: float
    std: float
    interval: Interval | None
    metrics: dict[str, dict[str, Any]]
    notes: list[str]
    versions: dict[str, str]

    def __repr__(self) -> str:
        metrics = metrics_text({name: about["mean"] for name, about in self.metrics.items()})
        returned = f"{number_text(self.mean)} ± {number_text(self.std)}{metrics}"
        return f"<{self.policy} policy of {self.member}: {returned} over {self.episodes} episodes of {self.env}>"


def find_policy(
    name: str | Path,
    root: Path = Path("runs"),
    *,
    seed: int | str | None = None,
    which: Which = "best",
    env: str | None = None,
    args: Mapping[str, Any] = NO_ARGS,
    make_env: EnvFactory | None = None,
) -> Found:
    """Finds a policy of a run, the best without a seed, or the one in a file, and compares environments.

    It plays where the best policies were chosen, unless env names another; args are on top of those which that has.
    make_env is for a run whose environment was made in Python.
    """
    stem = str(name).removesuffix(".safetensors").removesuffix(".json")
    files = (path for path in (Path(stem), root / stem) if os.path.isfile(f"{path}.safetensors"))  # noqa: PTH113
    file = next(files, None)
    if file is not None and seed is not None:
        raise UserError(f"{name} is a policy file, which holds one policy: it takes no --seed")
    run = (open_run(name, root) if file is None else _run_of(file))._replace(make_env=make_env)
    folder = run.path if run.path.is_dir() else run.path.parent  # of a policy file on its own
    own_env = run.env(env)
    own_env = own_env if env is None else replace(own_env, id="")  # one that the user has named may be anywhere
    needed = Config(env=own_env, td3=TD3Config(actor_network=run.cfg.actor_network or TD3Config.actor_network))
    find_again(own_names(needed), remembered_files(folder), folder)
    policy = run.load(file) if file is not None else None
    if policy is not None:
        values = policy.about.get("values")
        member = Member(policy.about["seed"], tuple(values.items()) if isinstance(values, dict) else ())
    else:
        member = run.best_member() if seed is None else run.member(seed)
    where = run.env(env, member, args)
    notes = _differences(newest_session(folder) or {}, where, factory_of(run, where))
    return Found(run, member, where, policy, notes, which, env, args, is_open=file is None and seed is None)


class Found(NamedTuple):
    """A policy, by what the log says: which of several is the best shows only when they play."""

    run: Run
    member: Member
    env: EnvConfig  # where it plays
    file: SavedPolicy | None  # the policy, if a file was named
    notes: list[str]  # how the environment differs from the one trained on
    which: Which
    env_id: str | None  # another environment than the run's
    args: Mapping[str, Any]
    is_open: bool  # whether nobody has said which policy it is

    @property
    def policy(self) -> SavedPolicy:
        return self.file or self.run.policy(self.member, self.which)

    def of(self, member: Member) -> Found:
        """Returns another member's policy, with that one's environment."""
        return self._replace(member=member, env=self.run.env(self.env_id, member, self.args))

    def best(self) -> Found:
        """Returns the best member's, who is chosen on fresh episodes if there are several and nobody has said which."""
        if not self.is_open or len(self.run.contenders) < 2:
            return self
        return self.of((known_choice(self.run) or play_choice(self.run)).member)

    def evaluate(self, episodes: int) -> PolicyEvaluation:
        """Plays fresh episodes; in the environment in which the policy was chosen, they are recorded as its result."""
        run, policy = self.run, self.policy
        if episodes < 1:
            raise UserError(f"episodes={episodes} is too few; run at least 1")
        played = play(run, {self.member: policy}, "test", episodes, env=self.env)
        enough = run.path.is_dir() and episodes >= fresh_episodes(run)
        if not (self.env_id or self.args or self.notes) and enough:
            save_played(run, played)
        returns = played[self.member].returns
        return PolicyEvaluation(
            run=str(run.path),
            member=self.member.name,
            seed=self.member.seed,
            values=dict(self.member.values),
            policy=policy.about.get("kind", self.which),
            step=policy.about["step"],
            env=with_args(self.env_id, self.env.args) if self.env_id else self.env.title,
            episodes=episodes,
            returns=returns.tolist(),
            lengths=played[self.member].lengths.tolist(),
            mean=float(returns.mean()),
            std=float(sample_std(returns)),
            interval=estimate(mean, [returns]).interval,
            metrics=_metrics(played[self.member].episodes),
            notes=self.notes,
            versions=versions(),
        )

    def record(
        self, out: str | Path | None, episodes: int | None = None, steps: int | None = None
    ) -> tuple[Path, float]:
        """Records a video and returns its path and the mean return; without limits one episode."""
        episodes = episodes if episodes is not None else steps if steps is not None else 1
        steps = STEPS_PER_EPISODE * episodes if steps is None else steps
        if episodes < 1 or steps < 1:
            raise UserError(f"{episodes} episodes and {steps} steps are too few; record at least 1")
        choose_graphics()
        from t3d.insight import video  # noqa: PLC0415 (only after the graphics are chosen)

        policy, default = self.policy, (self.run.path if self.run.path.is_dir() else Path()) / "video.mp4"
        target = followed(Path(out)) if out else default
        how: Any = {"seed": self.member.seed, "episodes": episodes, "steps": steps}
        mean_return = video.record(policy, self.env, target, make_env=factory_of(self.run, self.env), **how)
        if out is None:
            describe_video(self.run.path, self.member.name, policy.about["step"])
        return Path(out or default), mean_return


def export(
    run: Run, kind: Literal["onnx", "c"], out: str | Path | None, member: Member | None = None, which: Which = "best"
) -> Exported:
    """Writes a policy as one file; without a member, the one that did best as far as the folder says."""
    if is_own(run.cfg.actor_network):  # which is not imported for this
        refuse_own_network(run.cfg.actor_network)
    refuse_place(out := Path(out or run.path / f"policy.{kind}"))
    member = member or recorded_best(run)
    policy = run.policy(member, which)
    training = {  # what the file says about the run
        "run": readable(run.path.name),
        "rule": run.cfg.algo,
        "preset": run.cfg.preset,
        "total_steps": run.cfg.total_steps,
        "updates": policy.about["updates"],
        "evaluations": run.compared_evals(member),
        "trained_by": f"t3d {policy.about.get('t3d', '')}".strip(),
    }
    return export_policy(policy, out, kind, training)


def recorded_best(run: Run) -> Member:
    """Returns the best member on fresh episodes if they were played, else by its evaluations; plays nothing."""
    choice = known_choice(run)
    return run.best_member() if choice is None else choice.member


def _metrics(episodes: Sequence[EpisodeResult]) -> dict[str, dict[str, Any]]:
    """Returns the metrics of episodes with their means and intervals; those of rates are Wilson's."""
    metrics = {}
    for name, value in mean_metrics([episode.metrics for episode in episodes]).items():
        values = np.array(values_of(name, episodes))
        is_rate = name == SUCCESS and bool(np.isin(values, (0, 1)).all())
        interval = rate_interval(values.sum(), len(values)) if is_rate else estimate(mean, [values]).interval
        metrics[name] = {"mean": value, "episodes": len(values), "interval": interval, "values": values.tolist()}
    return metrics


def _run_of(file: Path) -> Run:
    """Returns the run whose policy this is; of a file that was moved out of its folder, what is known of it."""
    for folder in file.absolute().parents[1:3]:  # the second is for what a run has set aside
        if (folder / "config.toml").is_file() and (folder / "events.jsonl").is_file():
            return open_run(folder)
    policy = read_policy(file)
    about, spec = policy.about, policy.spec
    env: dict[str, Any] = {name: about[name] for name in ("pixels", "camera", "action_repeat") if name in about}
    env |= {"id": about.get("env", ""), "args": about.get("env_args", {}), "wrappers": about.get("wrappers", [])}
    env |= {"frame_stack": spec.stack, "max_action_change": spec.max_action_change}
    return Run(file, merge(Config(), {"env": env}), {})


def _differences(session: dict[str, Any], env: EnvConfig, make_env: EnvFactory) -> list[str]:
    """Says how an environment differs from the one trained on, as far as the session that trained knows that."""
    then, stored, now = session.get("environment"), session.get("versions"), versions()
    known = stored if isinstance(stored, dict) else {}
    changed = [
        f"{name} {known[name]!s:.40} -> {now.get(name, 'none')}"
        for name in SIMULATORS
        if name in known and known[name] != now.get(name)
    ]
    texts = least_differences(then, fingerprint(make_env, env)) if then else []
    if texts:
        return [f"the environment differs from the one trained on: {'; '.join([*texts, *changed])}"]
    return [f"the simulators are not those it was trained in: {'; '.join(changed)}"] if changed else []
