"""`t3d tune ENV`: searches settings with Optuna, and judges the best on fresh seeds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import tyro

from t3d.app.compare import PIPED_WIDTH, print_comparison
from t3d.app.terminal import PlainConsole, handling_signals
from t3d.app.train import ConfigArgs, parse_settings
from t3d.config import plain
from t3d.errors import StoppedEarly, UserError
from t3d.files import display_path

STORAGE = "T3D_STORAGE"


@dataclass(frozen=True, kw_only=True)
class TuneArgs(ConfigArgs):
    """Search settings for ENV with Optuna, and train the best three again beside the defaults on fresh seeds.

    The flags of t3d train say what the defaults are, how long a trial trains and with which seeds. The same command
    continues a search that has ended early; several at once share its trials. What the config names is imported.
    """

    space: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FIELD=LOW..HIGH[:log] FIELD=V1,V2 ...")] = ()
    """The settings to search and their values; :log draws the logarithm."""
    trials: int = 64
    """How many settings to try in all."""
    together: int = 16
    """Trials that train as one run, side by side; settings that members of a run share need a run each."""
    sampler: Literal["tpe", "random"] = "tpe"
    """How settings are chosen: by what earlier trials scored, or at random."""
    storage: str = ""
    """URL of an SQL database for several machines, or T3D_STORAGE in the environment; default: a file in the folder."""
    fresh_seeds: int = 5
    """Seeds of the verdict, which no trial has seen."""
    quiet: bool = False
    """Print only the result."""


def main(arguments: list[str]) -> int:
    """Searches, then prints the trials, the verdict and where everything is."""
    args = parse_settings(arguments, TuneArgs, "t3d tune")
    if not args.space:
        raise UserError("name settings to search, e.g. t3d tune ENV --space td3.gamma=0.95..0.999")
    from t3d.api.tune import tune  # noqa: PLC0415 (imports torch)

    given: dict[str, Any] = {name: getattr(args, name) for name in ("trials", "together", "sampler", "fresh_seeds")}
    console, storage = PlainConsole(), args.storage or os.environ.get(STORAGE, "")
    with handling_signals() as requested:
        try:
            tuning = tune(args.cfg, args.space, storage=storage, stop=requested.stop, progress=not args.quiet, **given)
        except StoppedEarly as stopped:
            PlainConsole(stderr=True).print(str(stopped), soft_wrap=True)
            return requested.exit_code
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    for name, values in tuning.points.items():
        console.print(
            f"{name}: {', '.join(f'{field}={plain(value)}' for field, value in values.items())}", soft_wrap=True
        )
    if tuning.comparison is not None:
        print_comparison(tuning.comparison, console)
        console.print(
            f"\nbest settings: {display_path(tuning.path / 'best.toml')}, with pictures beside", soft_wrap=True
        )
    return 0
