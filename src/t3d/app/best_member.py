"""Chooses the best member of a run and prints how it was chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from t3d.config import Member
from t3d.config.sweeps import counted, noun, setting
from t3d.errors import EnvironmentFailed, UserError
from t3d.insight.best_member import Choice, fresh_episodes, known_choice, play_choice
from t3d.store.reader import Run
from t3d.world.evaluate import Stopped


def best_member(run: Run, console: Console, before_a_step: Callable[[], object] = int) -> Member:
    """Returns the best member on fresh episodes, or that with the best evaluation if they cannot be played."""
    by_curve, what = run.best_member(), _in_words(run.contenders)
    if len(run.contenders) == 1:
        return by_curve
    try:
        choice = known_choice(run)
        if choice is None:
            _say(
                f"choosing the best of {what} on {fresh_episodes(run)} fresh episodes each (Ctrl-C skips this) ...",
                console,
            )
            choice = play_choice(run, before_a_step)
    except (KeyboardInterrupt, Stopped):
        _say(f"skipped: {by_curve.title} has the best evaluation", console)
        return by_curve
    except (EnvironmentFailed, UserError) as error:
        _say(f"cannot choose on fresh episodes: {error}; {by_curve.title} has the best evaluation", console)
        return by_curve
    _say(_result(choice, what), console)
    return choice.member


def _in_words(members: Sequence[Member]) -> str:
    """What the best is chosen from: 3 seeds, 4 members, or the 2 seeds with td3.gamma=0.98."""
    values = {member.values for member in members}
    if values == {()} or len(values) > 1:
        return counted(len(members), noun(members))
    return f"the {len(members)} seeds with {setting(members[0].values)}"


def _result(choice: Choice, what: str) -> str:
    others = [mean for member, mean in choice.mean_returns.items() if member != choice.member]
    one, many = f"the other: {others[0]:,.1f}", f"the others: {min(others):,.1f} to {max(others):,.1f}"
    return (
        f"{choice.member.title} is the best of {what}: mean return "
        f"{choice.mean_returns[choice.member]:,.1f} over {choice.episodes} fresh episodes "
        f"({one if len(others) == 1 else many})"
    )


def _say(text: str, console: Console) -> None:
    console.print(f"  {text}", highlight=False, soft_wrap=True, markup=False)
