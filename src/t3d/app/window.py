"""`t3d play RUN`: watch a policy in a window."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from functools import partial

from t3d.app.flags import read_flags
from t3d.app.play import PolicyFlags, find_policy
from t3d.app.terminal import PlainConsole
from t3d.errors import EnvironmentFailed, UserError
from t3d.insight.wording import number_text
from t3d.seeds import derive
from t3d.world.evaluate import open_for_evaluation, play_episodes
from t3d.world.fingerprint import check_fits
from t3d.world.simulators import choose_graphics, has_screen


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
    choose_graphics()
    from t3d.insight.video import open_window  # noqa: PLC0415 (only after the graphics are chosen)

    chosen = find_policy(args, console)
    run, policy, env = chosen.run, chosen.policy, chosen.env
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
