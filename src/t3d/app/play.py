"""`t3d eval RUN`, `t3d record RUN` and `t3d play RUN`: choose the best seed, play, and print or show the results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console

from t3d.api.policies import Found, Which
from t3d.api.policies import find_policy as find
from t3d.app.flags import RootFlag, read_flags
from t3d.app.tables import table, write_json
from t3d.app.terminal import PlainConsole, labelled, standard_output
from t3d.config import Member
from t3d.config.metrics import RETURN
from t3d.config.sweeps import counted, noun, values_title
from t3d.errors import EnvironmentFailed, UserError
from t3d.insight.best_member import Choice, fresh_episodes, known_choice, play_choice
from t3d.insight.wording import metric_text, number_text, returned
from t3d.seeds import derive
from t3d.store.best import read_fresh
from t3d.store.reader import Run
from t3d.world.evaluate import Stopped, open_for_evaluation, play_episodes
from t3d.world.fingerprint import check_fits
from t3d.world.simulators import choose_graphics, has_screen


@dataclass(frozen=True, kw_only=True)
class PolicyFlags(RootFlag):
    """What commands that play a policy share."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, its name under --root, or a policy file such as RUN/best/seed-0.safetensors."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Which seed's policy, in a sweep e.g. gamma-0.98-seed-0; default: the one that does best on fresh episodes."""
    policy: Which = "best"
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
    output = standard_output()
    with output.alone() if args.json else nullcontext():
        found = find_policy(args, PlainConsole(stderr=args.json))
        result = found.evaluate(args.episodes)
        if args.json:
            write_json(result._asdict(), output)
            return 0
    numbers = [result.mean, result.std, min(result.returns), max(result.returns), np.mean(result.lengths)]
    row = table("", "episodes", "mean return", "std", "min", "max", "mean length")
    row.add_row(str(result.episodes), *(f"{number:,.2f}" for number in numbers))
    console = PlainConsole()
    title = f"{result.env}, {found.member.title}, {result.policy} policy (step {result.step:,})"
    console.print(title, style="bold", soft_wrap=True)
    console.print(row)
    for name, metric in result.metrics.items():
        within = " to ".join(metric_text(name, end) for end in metric["interval"] or ())
        text = f"{name} {metric_text(name, metric['mean'])}{f' (95 % interval {within})' if within else ''}"
        console.print(f"{text} over {counted(metric['episodes'], 'episode')}", soft_wrap=True)
    return 0


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
    args, console = read_flags(RecordArgs, arguments, "t3d record"), PlainConsole()
    choose_graphics()  # before the environment's file can import MuJoCo
    path, mean_return = find_policy(args, console).record(args.out, args.episodes, args.steps)
    console.print(f"recorded: {path} (mean return {mean_return:,.1f})", soft_wrap=True)
    return 0


@dataclass(frozen=True, kw_only=True)
class PlayArgs(PolicyFlags):
    """Watch a policy of RUN in a window, on the episodes that t3d eval plays."""

    episodes: int = 3
    """Episodes to play; Ctrl-C ends them."""


def play(arguments: list[str]) -> int:
    """Plays in a window and prints what each episode returned."""
    args, console = read_flags(PlayArgs, arguments, "t3d play"), PlainConsole()
    if args.episodes < 1:
        raise UserError(f"episodes={args.episodes} is too few; play at least 1")
    instead = f"record a video instead: t3d record {args.run}"
    if not has_screen():
        raise UserError(f"there is no screen here (neither DISPLAY nor WAYLAND_DISPLAY is set); {instead}")
    choose_graphics()  # before the environment's file can import MuJoCo
    from t3d.insight.video import open_window  # noqa: PLC0415

    found = find_policy(args, console)
    run, policy, env = found.run, found.policy, found.env
    if env.pixels:
        raise UserError(f"{env.title} draws what the policy observes (env.pixels), so it has no window; {instead}")
    seeds = [derive(run.cfg.eval.seed, "test", episode) for episode in range(args.episodes)]
    try:
        env_batch = open_for_evaluation(partial(open_window, env), env, "the window", seeds[0])
    except EnvironmentFailed as error:
        raise UserError(f"{env.title} cannot be shown in a window here: {error}; {instead}") from error
    with closing(env_batch):
        check_fits(policy, env_batch.spec, env.id)
        for ended in play_episodes(policy.actor, env_batch, seeds, run.cfg.eval.max_steps):
            for episode in ended:
                total = number_text(episode.total_reward)
                console.print(f"episode {episode.episode}: return {total} in {episode.length} steps")
    return 0


def find_policy(args: PolicyFlags, console: Console) -> Found:
    """Finds the policy, prints how its environment differs from the one trained on, and chooses the best seed."""
    found = find(args.run, args.root, seed=args.seed, which=args.policy, env=args.env, args=args.args)
    for text in found.notes:  # before the choice on fresh episodes, which takes a while
        console.print(labelled("note:", "yellow", text), soft_wrap=True)
    return found.of(best_member(found.run, console)) if found.is_open else found


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


def show_choice(run: Run, console: Console) -> None:
    """Prints which of several members commands take that play nothing."""
    if len(run.contenders) > 1:
        choice, contenders = known_choice(run), _in_words(run.contenders)
        play = f"t3d eval {run.path} chooses on fresh episodes"
        unknown = f"{run.best_member().title} of {contenders} has the best evaluation; {play}"
        console.print(f"  {_result(choice, contenders, run) if choice else unknown}", soft_wrap=True)


def _in_words(members: Sequence[Member]) -> str:
    """What the best is chosen from: 3 seeds, 4 members, or the 2 seeds with td3.gamma=0.98."""
    values = {member.values for member in members}
    if values == {()} or len(values) > 1:
        return counted(len(members), noun(members))
    return f"the {len(members)} seeds with {values_title(members[0].values)}"


def _result(choice: Choice, contenders: str, run: Run) -> str:
    member, fresh = choice.member, read_fresh(run.path).by_member.get(choice.member.name)
    others = [choice.text(other) for other in choice.ranked[1:]]
    known = f"{choice.text(member)} over {choice.episodes} fresh episodes"
    if fresh and fresh.episodes == choice.episodes:
        known = returned(fresh)
    if not others:
        return f"{member.title}: mean return {known}"
    among = f"the others: {others[-1]} to {others[0]}" if len(others) > 1 else f"the other: {others[0]}"
    by = "" if choice.criterion.metric == RETURN else f" by {run.cfg.eval.best_by}"
    return f"{member.title} is the best of {contenders}{by}: mean return {known} ({among})"
