"""Opens the policy that a command plays, and the environment to play it in; prints what there is to know of both."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.text import Text

from t3d.app.terminal import labelled, printable
from t3d.config import Config, EnvConfig, Member, TD3Config, merge
from t3d.config.sweeps import counted, noun, values_title
from t3d.errors import EnvironmentFailed, UserError
from t3d.insight.best_member import Choice, fresh_episodes, known_choice, play_choice
from t3d.insight.wording import number_text, returned
from t3d.modules import find_again
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import read_policy
from t3d.store.best import read_fresh
from t3d.store.folder import versions
from t3d.store.journal import newest_session, remembered_files
from t3d.store.reader import Run, open_run
from t3d.world.evaluate import Stopped
from t3d.world.fingerprint import differences, fingerprint
from t3d.world.make import env_factory, own_names

SIMULATORS = ("gymnasium", "mujoco", "mujoco_core", "pybullet", "box2d", "dm_control")  # whose versions are compared


class Opened(NamedTuple):
    """A policy, and the environment to play it in."""

    run: Run
    member: Member
    policy: SavedPolicy
    env: EnvConfig
    notes: list[str]  # how that differs from the environment it was trained on


def open_policy(name: str, root: Path, seed: str | None, which: str, env_id: str | None, console: Console) -> Opened:
    """Opens a policy of a run, or the one in a policy file; first says how its environment has changed."""
    stem = name.removesuffix(".safetensors").removesuffix(".json")
    places = (Path(stem), root / stem)
    file = next((place for place in places if os.path.isfile(f"{place}.safetensors")), None)  # noqa: PTH113
    if file is not None and seed is not None:
        raise UserError(f"{name} is a policy file, which holds one policy: it takes no --seed")
    run = open_run(name, root) if file is None else _run_of(file)
    folder = run.path if run.path.is_dir() else run.path.parent  # of a policy file on its own
    env = run.env(env_id)
    own_env = env if env_id is None else EnvConfig()  # one that the user has named may be anywhere
    needed = Config(env=own_env, td3=TD3Config(actor_network=run.cfg.td3.actor_network))
    find_again(own_names(needed), remembered_files(folder), folder)
    notes = _differences(newest_session(folder) or {}, env)
    for text in notes:
        console.print(labelled("note:", "yellow", text), soft_wrap=True)
    if file is None:
        member = best_member(run, console) if seed is None else run.member(seed)
        return Opened(run, member, run.policy(member, which), env, notes)
    policy = run.load(file)
    values = policy.about.get("values")
    member = Member(policy.about["seed"], tuple(values.items()) if isinstance(values, dict) else ())
    return Opened(run, member, policy, env, notes)


def _run_of(file: Path) -> Run:
    """Returns the run whose policy this is; of a file that was moved out of its folder, what is known of it."""
    for folder in file.absolute().parents[1:3]:  # the second is for what a run has set aside
        if (folder / "config.toml").is_file() and (folder / "events.jsonl").is_file():
            return open_run(folder)
    policy = read_policy(file)
    about, spec = policy.about, policy.spec
    env: dict[str, Any] = {name: about[name] for name in ("pixels", "camera", "action_repeat") if name in about}
    env |= {"id": about.get("env", ""), "args": about.get("env_args", {})}
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
    texts = differences(then, fingerprint(make_env, env)) if then else []
    if texts:
        return [f"the environment differs from the one trained on: {'; '.join([*texts, *changed])}"]
    return [f"the simulators are not those it was trained in: {'; '.join(changed)}"] if changed else []


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
    choice, what = known_choice(run), _in_words(run.contenders)
    if len(run.contenders) > 1:
        play = f"t3d eval {run.path} chooses on fresh episodes"
        unknown = f"{run.best_member().title} of {what} has the best evaluation; {play}"
        _say(unknown if choice is None else _result(choice, what, run), console)
    return run.best_member() if choice is None else choice.member


def _in_words(members: Sequence[Member]) -> str:
    """What the best is chosen from: 3 seeds, 4 members, or the 2 seeds with td3.gamma=0.98."""
    values = {member.values for member in members}
    if values == {()} or len(values) > 1:
        return counted(len(members), noun(members))
    return f"the {len(members)} seeds with {values_title(members[0].values)}"


def _result(choice: Choice, what: str, run: Run) -> Text:
    """Says what the best one returned, and the others."""
    member, fresh = choice.member, read_fresh(run.path).by_member.get(choice.member.name)
    others = [number_text(mean) for mean in sorted(choice.mean_returns.values())[:-1]]
    known = f"{number_text(choice.mean_returns[member])} over {choice.episodes} fresh episodes"
    if fresh and fresh.episodes == choice.episodes:
        known = returned(fresh)
    if not others:
        return Text.assemble(f"{member.title}: ", (f"mean return {known}", "bold"))
    among = f"the others: {others[0]} to {others[-1]}" if len(others) > 1 else f"the other: {others[0]}"
    return Text.assemble(f"{member.title} is the best of {what}: ", (f"mean return {known}", "bold"), f" ({among})")


def _say(text: str | Text, console: Console) -> None:
    console.print(Text.assemble("  ", text if isinstance(text, Text) else printable(text)), soft_wrap=True)
