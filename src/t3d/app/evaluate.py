"""`t3d eval RUN`: evaluates a policy on episodes that played no part in choosing it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import tyro

from t3d.app.best_member import open_policy
from t3d.app.flags import PolicyFlags, read_flags
from t3d.app.json_output import member_fields, write_json
from t3d.app.tables import table
from t3d.app.terminal import PlainConsole, standard_output
from t3d.errors import UserError
from t3d.insight.best_member import fresh_episodes, play, save_played
from t3d.insight.statistics import estimate, mean
from t3d.store.folder import versions
from t3d.types import sample_std


@dataclass(frozen=True, kw_only=True)
class EvalArgs(PolicyFlags):
    """Evaluate a policy of RUN without noise, on episodes that training never saw."""

    episodes: int = 10
    """Episodes to run."""
    env: Annotated[str | None, tyro.conf.arg(metavar="ENV")] = None
    """Environment to run; default: the one the run was trained on."""
    json: bool = False
    """Print the result as one JSON object; all messages go to standard error."""


def main(arguments: list[str]) -> int:
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
    return 0


def _evaluate(args: EvalArgs, console: PlainConsole) -> tuple[str, dict[str, Any]]:
    """Returns a title, and the result as docs/output.md describes it."""
    run, member, policy, env, notes = open_policy(args.run, args.root, args.seed, args.policy, args.env, console)
    played = play(run, {member: policy}, "test", args.episodes, env=env)
    enough = run.path.is_dir() and args.episodes >= fresh_episodes(run)
    if args.env is None and not notes and enough:  # in the environment it was trained in
        save_played(run, played)
    returns, lengths = played[member].returns, played[member].lengths
    name, kind, step = args.env or run.cfg.env.title, policy.about.get("kind", args.policy), policy.about["step"]
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
        "notes": notes,
        "versions": versions(),
    }
