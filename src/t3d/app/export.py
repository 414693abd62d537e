"""`t3d export RUN`: writes a policy as one file that runs without T3D."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from t3d.api.policies import Which, export
from t3d.app.flags import RunFlags, read_flags
from t3d.app.play import show_choice
from t3d.app.terminal import PlainConsole
from t3d.insight.wording import size_text
from t3d.ship.export import OBSERVATIONS
from t3d.store.reader import open_run


@dataclass(frozen=True, kw_only=True)
class ExportArgs(RunFlags):
    """Write a policy of RUN as one file: normaliser, image preprocessing and rescaling of actions are inside.

    It is compared with the policy on 10,000 observations first, and not written if they differ.
    """

    format: Literal["onnx", "c"] = "onnx"
    """onnx: for onnxruntime and others, needs the extra export. c: one C99 file for a microcontroller."""
    policy: Which = "best"
    """The best policy of the run, or the last one."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Which seed's policy, in a sweep e.g. gamma-0.98-seed-0; default: the one that did best on fresh episodes."""
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None
    """The file to write; default: policy.onnx or policy.c in the run's folder."""


def main(arguments: list[str]) -> int:
    """Exports the policy and prints the file's path."""
    args = read_flags(ExportArgs, arguments, "t3d export")
    console, run = PlainConsole(), open_run(args.run, args.root)
    exported = export(run, args.format, args.out, None if args.seed is None else run.member(args.seed), args.policy)
    if args.seed is None:
        show_choice(run, console)
    compared = "not compared with the policy, because there is no C compiler here"
    if exported.difference is not None:
        most = f"at most {exported.difference:.1e} of the range of actions"
        compared = f"on {OBSERVATIONS:,} observations it differs from the policy by {most}"
    console.print(f"exported: {exported.path} ({size_text(exported.bytes)}; {compared})", soft_wrap=True)
    return 0
