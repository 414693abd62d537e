"""`t3d eval RUN`: evaluates a policy on episodes that played no part in choosing it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import tyro
from numpy.typing import NDArray
from rich.table import Table

from t3d.app.best_member import Opened, open_policy
from t3d.app.flags import read_flags
from t3d.app.json_output import member_fields, write_json
from t3d.app.terminal import PlainConsole, standard_output
from t3d.errors import UserError
from t3d.insight.best_member import fresh_episodes, play, save_played
from t3d.insight.statistics import estimate, mean
from t3d.store.folder import versions
from t3d.types import sample_std


@dataclass(frozen=True)
class EvalArgs:
    """Evaluate a policy of RUN without noise, on episodes that training never saw."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, its name under --root, or a policy file such as RUN/best/seed-0.safetensors."""
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
    json: bool = False
    """Print the result as one JSON object; all messages go to standard error."""


class Result(NamedTuple):
    """The policy that was evaluated, and the episodes it played."""

    opened: Opened
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]


def main(arguments: list[str]) -> int:
    """Evaluates the policy and prints a table or JSON."""
    args = read_flags(EvalArgs, arguments, "t3d eval")
    if args.episodes < 1:
        raise UserError(f"episodes={args.episodes} is too few; run at least 1")
    output = standard_output()
    with output.alone() if args.json else nullcontext():
        result = _play(args, PlainConsole(stderr=args.json))
        if args.json:
            write_json(_as_json(args, result), output)
        else:
            _print_table(args, result)
    return 0


def _play(args: EvalArgs, console: PlainConsole) -> Result:
    opened = open_policy(args.run, args.root, args.seed, args.policy, args.env, console)
    run, member, policy, env, notes = opened
    played = play(run, {member: policy}, "test", args.episodes, env=env)[member]
    enough = run.path.is_dir() and args.episodes >= fresh_episodes(run)
    if args.env is None and not notes and enough:  # in the environment it was trained in
        save_played(run, {member: (policy, played)})
    return Result(opened, played.returns, played.lengths)


def _print_table(args: EvalArgs, result: Result) -> None:
    (run, member, policy, _, _), returns, lengths = result
    played, kind = args.env or run.cfg.env.title, policy.about.get("kind", args.policy)
    table = Table(title=f"{played}, {member.title}, {kind} policy (step {policy.about['step']:,})")
    for name in ("episodes", "mean return", "std", "min", "max", "mean length"):
        table.add_column(name, justify="right")
    figures = [returns.mean(), sample_std(returns), returns.min(), returns.max(), np.mean(lengths)]
    table.add_row(str(args.episodes), *(f"{figure:,.2f}" for figure in figures))
    PlainConsole().print(table)


def _as_json(args: EvalArgs, result: Result) -> dict[str, Any]:
    """Returns what docs/output.md describes."""
    (run, member, policy, _, notes), returns, lengths = result
    return {
        "run": str(run.path),
        **member_fields(member),
        "policy": policy.about.get("kind", args.policy),
        "step": policy.about["step"],
        "env": args.env or run.cfg.env.title,
        "episodes": args.episodes,
        "returns": returns.tolist(),
        "lengths": lengths.tolist(),
        "mean": float(returns.mean()),
        "std": float(sample_std(returns)),
        "interval": estimate(mean, [returns]).interval,
        "notes": notes,
        "versions": versions(),
    }
