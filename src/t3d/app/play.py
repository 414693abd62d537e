"""`t3d eval RUN` and `t3d record RUN`: open a policy and its environment, choose the best seed, and play."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from rich.console import Console

from t3d.app.flags import RootFlag, read_flags
from t3d.app.tables import member_fields, table, write_json
from t3d.app.terminal import PlainConsole, labelled, standard_output
from t3d.config import Config, EnvConfig, Member, TD3Config, merge
from t3d.config.metrics import SUCCESS
from t3d.config.settings import with_args
from t3d.config.sweeps import counted, noun, values_title
from t3d.errors import EnvironmentFailed, UserError
from t3d.files import followed
from t3d.insight.best_member import Choice, fresh_episodes, known_choice, play, play_choice, save_played
from t3d.insight.statistics import estimate, mean, rate_interval
from t3d.insight.wording import metric_text, number_text, returned
from t3d.modules import find_again
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import read_policy
from t3d.store.best import read_fresh
from t3d.store.details import describe_video
from t3d.store.folder import versions
from t3d.store.log import newest_session, remembered_files
from t3d.store.reader import Run, open_run
from t3d.types import EpisodeResult, mean_metrics, sample_std, values_of
from t3d.world.evaluate import Stopped
from t3d.world.fingerprint import fingerprint, least_differences
from t3d.world.make import env_factory, own_names
from t3d.world.simulators import choose_graphics

STEPS_PER_EPISODE = 1000  # of a video; longer ones are cut; chosen
SIMULATORS = ("gymnasium", "mujoco", "mujoco_core", "pybullet", "box2d", "dm_control")  # whose versions are compared


@dataclass(frozen=True, kw_only=True)
class PolicyFlags(RootFlag):
    """What commands that play a policy share."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, its name under --root, or a policy file such as RUN/best/seed-0.safetensors."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Which seed's policy, in a sweep e.g. gamma-0.98-seed-0; default: the one that does best on fresh episodes."""
    policy: Literal["best", "last"] = "best"
    """The best policy of the run, or the last one."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """The environment to play in; default: the one the run's best policies were chosen in."""
    args: Annotated[dict[str, Any], tyro.conf.arg(metavar="NAME=VALUE ...")] = field(default_factory=dict)
    """Arguments of the environment, on top of the run's or of another one's defaults, e.g. wind=3."""


@dataclass(frozen=True, kw_only=True)
class EvalArgs(PolicyFlags):
    """Evaluate a policy of RUN without noise, on episodes that training never saw."""

    episodes: int = 10
    """Episodes to run."""
    json: bool = False
    """Print the result as one JSON object; all messages go to standard error."""


def evaluate(arguments: list[str]) -> int:
    """Evaluates the policy and prints a table or JSON."""
    args = read_flags(EvalArgs, arguments, "t3d eval")
    if args.episodes < 1:
        raise UserError(f"episodes={args.episodes} is too few; run at least 1")
    output = standard_output()
    with output.alone() if args.json else nullcontext():
        title, result = _evaluate(args, PlainConsole(stderr=args.json))
        if args.json:
            write_json(result, output)
            return 0
    returns = result["returns"]
    numbers = [result["mean"], result["std"], min(returns), max(returns), np.mean(result["lengths"])]
    row = table("", "episodes", "mean return", "std", "min", "max", "mean length")
    row.add_row(str(args.episodes), *(f"{number:,.2f}" for number in numbers))
    console = PlainConsole()
    console.print(title, style="bold", soft_wrap=True)
    console.print(row)
    for name, metric in result["metrics"].items():
        within = " to ".join(metric_text(name, end) for end in metric["interval"] or ())
        text = f"{name} {metric_text(name, metric['mean'])}{f' (95 % interval {within})' if within else ''}"
        console.print(f"{text} over {counted(metric['episodes'], 'episode')}", soft_wrap=True)
    return 0


def _metrics(episodes: Sequence[EpisodeResult]) -> dict[str, Any]:
    """Returns the metrics of episodes with their means and intervals; those of rates are Wilson's."""
    metrics = {}
    for name, value in mean_metrics([episode.metrics for episode in episodes]).items():
        values = np.array(values_of(name, episodes))
        is_rate = name == SUCCESS and bool(np.isin(values, (0, 1)).all())
        interval = rate_interval(values.sum(), len(values)) if is_rate else estimate(mean, [values]).interval
        metrics[name] = {"mean": value, "episodes": len(values), "interval": interval, "values": values.tolist()}
    return metrics


def _evaluate(args: EvalArgs, console: PlainConsole) -> tuple[str, dict[str, Any]]:
    """Returns a title, and the result as docs/output.md describes it."""
    run, member, policy, env, notes = open_policy(args, console)
    played = play(run, {member: policy}, "test", args.episodes, env=env)
    enough = run.path.is_dir() and args.episodes >= fresh_episodes(run)
    if not (args.env or args.args or notes) and enough:  # in the environment it was chosen in
        save_played(run, played)
    returns, lengths = played[member].returns, played[member].lengths
    title = with_args(args.env, env.args) if args.env else env.title
    name, kind, step = title, policy.about.get("kind", args.policy), policy.about["step"]
    return f"{name}, {member.title}, {kind} policy (step {step:,})", {
        "run": str(run.path),
        **member_fields(member),
        "policy": kind,
        "step": step,
        "env": name,
        "episodes": args.episodes,
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
        "mean": float(returns.mean()),
        "std": float(sample_std(returns)),
        "interval": estimate(mean, [returns]).interval,
        "metrics": _metrics(played[member].episodes),
        "notes": notes,
        "versions": versions(),
    }


@dataclass(frozen=True, kw_only=True)
class RecordArgs(PolicyFlags):
    """Record a video of a policy of RUN."""

    episodes: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Episodes to record; default: 1, or as many as --steps needs."""
    steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Steps to record in total; default: 1,000 per episode."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE.mp4")] = None
    """Video file; default: video.mp4 in the run's folder."""


def record(arguments: list[str]) -> int:
    """Records the video and prints the file's path."""
    args = read_flags(RecordArgs, arguments, "t3d record")
    episodes = args.episodes if args.episodes is not None else args.steps if args.steps is not None else 1
    steps = STEPS_PER_EPISODE * episodes if args.steps is None else args.steps
    if episodes < 1 or steps < 1:
        raise UserError(f"{episodes} episodes and {steps} steps are too few; record at least 1")
    choose_graphics()
    from t3d.insight import video  # noqa: PLC0415 (only after the graphics are chosen)

    console = PlainConsole()
    run, member, policy, env, _ = open_policy(args, console)
    out = args.out or (run.path if run.path.is_dir() else Path()) / "video.mp4"
    target = followed(args.out) if args.out else out
    mean_return = video.record(policy, env, target, seed=member.seed, episodes=episodes, steps=steps)
    if args.out is None:
        describe_video(run.path, member.name, policy.about["step"])
    console.print(f"recorded: {out} (mean return {mean_return:,.1f})", soft_wrap=True)
    return 0


def open_policy(args: PolicyFlags, console: Console) -> tuple[Run, Member, SavedPolicy, EnvConfig, list[str]]:
    """Opens a policy of a run, or the one in a policy file; also returns the environment to play in, and notes.

    The notes, which are printed too, say how that differs from the environment it was trained on.
    """
    name, root, seed, which = args.run, args.root, args.seed, args.policy
    stem = name.removesuffix(".safetensors").removesuffix(".json")
    files = (path for path in (Path(stem), root / stem) if os.path.isfile(f"{path}.safetensors"))  # noqa: PTH113
    file = next(files, None)
    if file is not None and seed is not None:
        raise UserError(f"{name} is a policy file, which holds one policy: it takes no --seed")
    run = open_run(name, root) if file is None else _run_of(file)
    folder = run.path if run.path.is_dir() else run.path.parent  # of a policy file on its own
    own_env = run.env(args.env)
    own_env = own_env if args.env is None else replace(own_env, id="")  # one that the user has named may be anywhere
    needed = Config(env=own_env, td3=TD3Config(actor_network=run.cfg.actor_network or TD3Config.actor_network))
    find_again(own_names(needed), remembered_files(folder), folder)
    policy = run.load(file) if file is not None else None
    if policy is not None:
        values = policy.about.get("values")
        member = Member(policy.about["seed"], tuple(values.items()) if isinstance(values, dict) else ())
    elif seed is not None:
        member = run.member(seed)
    else:
        member = run.best_member()  # notes come before the choice on fresh episodes, which takes a while
    env = run.env(args.env, member, args.args)
    notes = _differences(newest_session(folder) or {}, env)
    for text in notes:
        console.print(labelled("note:", "yellow", text), soft_wrap=True)
    if policy is None and seed is None:
        member = best_member(run, console)
        env = run.env(args.env, member, args.args)
    return run, member, policy or run.policy(member, which), env, notes


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


def _differences(session: dict[str, Any], env: EnvConfig) -> list[str]:
    """Says how an environment differs from the one trained on, as far as the session that trained knows that."""
    make_env, then, stored, now = env_factory(env), session.get("environment"), session.get("versions"), versions()
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


def best_member(
    run: Run, console: Console, before_a_step: Callable[[], object] = int, *, always: bool = False
) -> Member:
    """Returns the best member on fresh episodes, or that with the best evaluation if they cannot be played.

    They are always played, or only if there is a choice.
    """
    by_curve, contenders, several = run.best_member(), _in_words(run.contenders), len(run.contenders) > 1
    if not several and not always:
        return by_curve
    episodes = f"{fresh_episodes(run)} fresh episodes"
    playing = f"choosing the best of {contenders} on {episodes} each" if several else f"playing {episodes}"
    try:
        choice = known_choice(run)
        if choice is None:
            console.print(f"  {playing} (Ctrl-C skips this) ...", soft_wrap=True)
            choice = play_choice(run, before_a_step)
    except (KeyboardInterrupt, Stopped):
        problem = "skipped"
    except (EnvironmentFailed, UserError) as error:
        problem = f"cannot play fresh episodes: {error}"
    else:
        console.print(f"  {_result(choice, contenders, run)}", style="bold", soft_wrap=True)
        return choice.member
    console.print(f"  {problem}; {by_curve.title} has the best evaluation", soft_wrap=True)
    return by_curve


def chosen_member(run: Run, console: Console) -> Member:
    """Returns the best member as far as the folder says, for commands that play nothing."""
    choice, contenders = known_choice(run), _in_words(run.contenders)
    member = run.best_member() if choice is None else choice.member
    if len(run.contenders) > 1:
        play = f"t3d eval {run.path} chooses on fresh episodes"
        unknown = f"{member.title} of {contenders} has the best evaluation; {play}"
        console.print(f"  {_result(choice, contenders, run) if choice else unknown}", soft_wrap=True)
    return member


def _in_words(members: Sequence[Member]) -> str:
    """What the best is chosen from: 3 seeds, 4 members, or the 2 seeds with td3.gamma=0.98."""
    values = {member.values for member in members}
    if values == {()} or len(values) > 1:
        return counted(len(members), noun(members))
    return f"the {len(members)} seeds with {values_title(members[0].values)}"


def _result(choice: Choice, contenders: str, run: Run) -> str:
    member, fresh = choice.member, read_fresh(run.path).by_member.get(choice.member.name)
    others = [*map(number_text, sorted(mean for other, mean in choice.mean_returns.items() if other != member))]
    known = f"{number_text(choice.mean_returns[member])} over {choice.episodes} fresh episodes"
    if fresh and fresh.episodes == choice.episodes:
        known = returned(fresh)
    if not others:
        return f"{member.title}: mean return {known}"
    among = f"the others: {others[0]} to {others[-1]}" if len(others) > 1 else f"the other: {others[0]}"
    return f"{member.title} is the best of {contenders}: mean return {known} ({among})"
