"""The arguments of training episodes: those of env.schedule, and how they reach the environment."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from t3d.config import EnvConfig
from t3d.seeds import derive, stream
from t3d.world.batch import SingleEnvs, open_batch
from t3d.world.guard import EnvFactory

SEED = derive(0, "schedules")  # of no run's own streams


def episode_args(cfg: EnvConfig, seed: int, env: int, episode: int, step: int) -> dict[str, Any]:
    """Returns the arguments of an episode that begins at this step of its member; each is drawn from its own stream."""
    drawn = {
        name: schedule.at(step, stream(seed, f"argument {name}", env, episode).random())
        for name, schedule in cfg.schedules.items()
    }
    return {**cfg.args, **drawn}


def try_schedules(make_env: EnvFactory, cfg: EnvConfig, beat: Callable[[], object] = int) -> list[str]:
    """Starts an episode with the ends, or the choices, of every schedule; says so if environments are made again."""
    if not cfg.schedule:
        return []
    with closing(open_batch(make_env, cfg, "the start", beat=beat)) as batch:
        examples = {name: schedule.examples for name, schedule in cfg.schedules.items()}
        for number in range(max(map(len, examples.values()))):
            drawn = {name: values[min(number, len(values) - 1)] for name, values in examples.items()}
            batch.reset(0, SEED, number, {**cfg.args, **drawn})
    assert isinstance(batch, SingleEnvs)  # noqa: S101 (a VectorEnv has been refused)
    again = [name for name in cfg.schedule if name not in batch.envs[0].reset_options]
    if not again:
        return []
    return [
        f"env.schedule: {cfg.label} is made again before each episode with another {', '.join(again)}, which takes "
        f"{1000 * batch.seconds_to_make:.3g} ms; if its reset takes {'them' if len(again) > 1 else 'it'} in options, "
        "list the names in metadata['reset_options']"
    ]
