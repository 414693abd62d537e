"""`t3d eval RUN`: how good is the policy on episodes it was not chosen by?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import tyro
from rich.console import Console
from rich.table import Table

from t3d.errors import UserError
from t3d.insight.runs import open_run
from t3d.seeds import derive
from t3d.world.envs import env_factory
from t3d.world.evaluate import evaluate
from t3d.world.lanes import open_lanes


@dataclass(frozen=True)
class Eval:
    """Play a policy of RUN without noise, on seeds that training never saw."""

    run: tyro.conf.Positional[str]
    """The run's folder."""
    seed: int | None = None
    """Which trained seed; the one with the best evaluation if not given."""
    policy: Literal["best", "last"] = "best"
    """The best policy of the run, or the last one."""
    episodes: int = 10
    """Episodes to play."""


def main(arguments: list[str]) -> int:
    """Parses, plays, and prints a table."""
    args = tyro.cli(Eval, args=arguments, prog="t3d eval")
    if args.episodes < 1:
        raise UserError(f"episodes={args.episodes} is too few; play at least 1")
    run = open_run(args.run)
    seed = run.choose_seed(args.seed)
    policy = run.policy(seed, args.policy)
    lanes = open_lanes(env_factory(run.cfg.env.id), run.cfg.env, "the test", count=1)
    returns, lengths = evaluate(policy.member, lanes, [derive(seed, "test", one) for one in range(args.episodes)])
    lanes.close()

    console = Console()
    table = Table(title=f"{run.cfg.env.id}, seed {seed}, {args.policy} policy (step {policy.about['step']:,})")
    for name in ("episodes", "mean return", "std", "min", "max", "mean length"):
        table.add_column(name, justify="right")
    figures = [returns.mean(), returns.std(), returns.min(), returns.max(), np.mean(lengths)]
    table.add_row(str(args.episodes), *(f"{figure:,.2f}" for figure in figures))
    console.print(table)
    return 0
