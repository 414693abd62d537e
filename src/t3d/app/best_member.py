"""Chooses the best member of a run and prints how it was chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from t3d.app.safe_output import printable
from t3d.app.tables import figure, returned
from t3d.config import Member
from t3d.config.sweeps import counted, noun, setting
from t3d.errors import EnvironmentFailed, UserError
from t3d.insight.best_member import Choice, fresh_episodes, known_choice, play_choice
from t3d.store.fresh import read_fresh
from t3d.store.reader import Run
from t3d.world.evaluate import Stopped


def best_member(
    run: Run, console: Console, before_a_step: Callable[[], object] = int, *, always: bool = False
) -> Member:
    """Returns the best member on fresh episodes, or that with the best evaluation if they cannot be played.

    They are always played, or only if there is a choice.
    """
    by_curve, what, episodes = run.best_member(), _in_words(run.contenders), fresh_episodes(run)
    several = len(run.contenders) > 1
    if not several and not always:
        return by_curve
    playing = f"choosing the best of {what} on {episodes} fresh episodes each"
    instead = f"{by_curve.title} has the best evaluation"
    try:
        choice = known_choice(run)
        if choice is None:
            _say(f"{playing if several else f'playing {episodes} fresh episodes'} (Ctrl-C skips this) ...", console)
            choice = play_choice(run, before_a_step)
    except (KeyboardInterrupt, Stopped):
        _say(f"skipped: {instead}" if several else "skipped", console)
        return by_curve
    except (EnvironmentFailed, UserError) as error:
        _say(f"cannot {'choose on' if several else 'play'} fresh episodes: {error}; {instead}", console)
        return by_curve
    _say(_result(choice, what, run), console)
    return choice.member


def chosen_member(run: Run, console: Console) -> Member:
    """Returns the best member as far as the folder says, for commands that play nothing."""
    several, choice = len(run.contenders) > 1, known_choice(run)
    if several and choice is None:
        play = f"t3d eval {run.path} chooses on fresh episodes"
        _say(f"{run.best_member().title} of {_in_words(run.contenders)} has the best evaluation; {play}", console)
    elif several and choice is not None:
        _say(_result(choice, _in_words(run.contenders), run), console)
    return run.best_member() if choice is None else choice.member


def _in_words(members: Sequence[Member]) -> str:
    """What the best is chosen from: 3 seeds, 4 members, or the 2 seeds with td3.gamma=0.98."""
    values = {member.values for member in members}
    if values == {()} or len(values) > 1:
        return counted(len(members), noun(members))
    return f"the {len(members)} seeds with {setting(members[0].values)}"


def _result(choice: Choice, what: str, run: Run) -> Text:
    """Says what the best one returned, and the others."""
    member, fresh = choice.member, read_fresh(run.path).by_member.get(choice.member.name)
    others = [mean for other, mean in choice.mean_returns.items() if other != member]
    known = f"{figure(choice.mean_returns[member])} over {choice.episodes} fresh episodes"
    if fresh and fresh.episodes == choice.episodes:
        known = returned(fresh)
    if not others:
        return Text.assemble(f"{member.title}: ", (f"mean return {known}", "bold"))
    among = (
        f"the other: {figure(others[0])}"
        if len(others) == 1
        else f"the others: {figure(min(others))} to {figure(max(others))}"
    )
    return Text.assemble(f"{member.title} is the best of {what}: ", (f"mean return {known}", "bold"), f" ({among})")


def _say(text: str | Text, console: Console) -> None:
    console.print(Text.assemble("  ", text if isinstance(text, Text) else printable(text)), soft_wrap=True)
