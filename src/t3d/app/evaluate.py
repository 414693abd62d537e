"""`t3d eval RUN`: evaluates a policy on episodes that played no part in choosing it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich.table import Table

from t3d.app.best_member import best_member
from t3d.app.flags import read_flags
from t3d.app.plain_console import PlainConsole
from t3d.errors import UserError
from t3d.seeds import derive
from t3d.store.reader import open_run
from t3d.world.batch import open_batch
from t3d.world.compatibility import check_fits
from t3d.world.evaluate import evaluate
from t3d.world.make import env_factory


@dataclass(frozen=True)
class EvalArgs:
    """Evaluate a policy of RUN without noise, on episodes that training never saw."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name under --root."""
    root: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs")
    """Folder that contains the runs."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Which seed's policy, in a sweep e.g. gamma-0.98-seed-0; default: the one that does best on fresh episodes."""
    policy: Literal["best", "last"] = "best"
    """The best policy of the run, or the last one."""
    episodes: int = 10
    """Episodes to run."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Environment to run; default: the one the run was trained on."""


def main(arguments: list[str]) -> int:
    """Evaluates the policy and prints a table."""
    args = read_flags(EvalArgs, arguments, "t3d eval")
    if args.episodes < 1:
        raise UserError(f"episodes={args.episodes} is too few; run at least 1")
    console, run = PlainConsole(), open_run(args.run, args.root)
    member = best_member(run, console) if args.seed is None else run.member(args.seed)
    policy = run.policy(member, args.policy)
    env_batch = open_batch(env_factory(run.env_id(args.env)), run.cfg.env, "the test")
    check_fits(policy, env_batch.spec, run.env_id(args.env))
    seeds = [derive(run.cfg.eval.seed, "test", episode) for episode in range(args.episodes)]
    returns, lengths = evaluate(policy.actor, env_batch, seeds, run.cfg.eval.max_steps)
    env_batch.close()

    played = args.env or run.cfg.env.title
    table = Table(title=f"{played}, {member.title}, {args.policy} policy (step {policy.about['step']:,})")
    for name in ("episodes", "mean return", "std", "min", "max", "mean length"):
        table.add_column(name, justify="right")
    figures = [returns.mean(), returns.std(), returns.min(), returns.max(), np.mean(lengths)]
    table.add_row(str(args.episodes), *(f"{figure:,.2f}" for figure in figures))
    PlainConsole().print(table)
    return 0
