"""`t3d train ENV`: trains policies; `t3d presets`: lists the presets."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import tyro
from rich.table import Table

from t3d.app.dash import NEEDED
from t3d.app.flags import ShowFlags, is_flag, read_flags, read_known
from t3d.app.session import show
from t3d.app.terminal import PlainConsole, SignalRequests, labelled
from t3d.config import Config, diff, load_toml, merge, plain
from t3d.config.presets import PRESETS, preset
from t3d.config.sweeps import swept
from t3d.errors import NothingLeft, UserError, check_installed
from t3d.events import Event

NUMBERS = re.compile(r"[-+.,\deE]+")  # values of a sweep that were torn off by a space


@dataclass(frozen=True, kw_only=True)
class TrainArgs(ShowFlags):
    """Train TD3 on ENV: a Gymnasium id, dm:domain-task, module:id, or module:callable for your own environment.

    Settings come from the defaults, then the preset, then --config, then the flags below.
    """

    cfg: Annotated[Config, tyro.conf.arg(name="")]
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")] = None
    """A TOML file of settings, e.g. the config.toml of an earlier run."""
    resume_or_start: bool = False
    """Resume the run named by --run.name if it exists, otherwise start it; safe to repeat after an interruption."""
    dash: bool = False
    """Show the runs in a browser while it trains, and print the address to open."""


def main(arguments: list[str]) -> int:
    """Trains and prints the results."""
    args = parse(arguments)
    if args.resume_or_start and not args.cfg.run.name:
        raise UserError("--resume-or-start needs --run.name NAME, the run to look for")
    path = Path(args.cfg.run.root) / args.cfg.run.name
    resuming = args.resume_or_start and path.is_dir()

    def events(requested: SignalRequests) -> Iterator[Event]:
        from t3d.run.live import resume, train  # noqa: PLC0415 (imports torch)

        if resuming:
            return resume(path, cfg=args.cfg, stop=requested.stop, save=requested.save)
        return train(args.cfg, stop=requested.stop, save=requested.save)

    try:
        with _dashboard(args) if args.dash else nullcontext():
            return show(events, video=args.video, quiet=args.quiet, json=args.json)
    except NothingLeft as left:
        if not resuming:
            raise
        # a scheduler that repeats the command until it succeeds must see success
        print(left, file=sys.stderr if args.json else sys.stdout)
        return 0


@contextmanager
def _dashboard(args: TrainArgs) -> Iterator[None]:
    """Serves the dashboard in another process for as long as the run is shown."""
    check_installed(*NEEDED)
    from t3d.dash.process import beside  # noqa: PLC0415 (needs the extra)

    with beside(Path(args.cfg.run.root)) as address:
        print(f"dashboard: {address}", file=sys.stderr if args.json or args.quiet else sys.stdout, flush=True)
        yield


def parse(arguments: list[str]) -> TrainArgs:
    """Builds the configuration from preset, file and flags. ENV comes first, or after a flag with a single value."""
    arguments = _join_sweeps(arguments)
    file = _option(arguments, "--config")
    from_file = load_toml(Path(os.path.realpath(file))) if file else {}  # a link that the user names is followed
    flag, in_file = _option(arguments, "--preset"), from_file.get("preset")
    if flag is not None and in_file not in (None, flag):
        raise UserError(f"{file} says preset={in_file}, and the command --preset {flag}; leave one of them out")
    name = flag or str(in_file or "default")
    try:
        base = merge(preset(name), {**from_file, "preset": name})
    except UserError as error:
        raise UserError(f"{file}: {error}" if file else str(error)) from None
    defaults = TrainArgs(cfg=merge(base, {"env": {"args": {}}}))  # which are no flags
    args, envs = read_known(TrainArgs, arguments, "t3d train", defaults, words="ENV")
    _refuse_swept_flags(arguments, args.cfg)
    if args.cfg.env.id != base.env.id:
        envs.append(args.cfg.env.id)
    if len(envs) > 1:
        raise UserError(f"train takes one environment, but {' and '.join(envs)} were given")
    cfg = merge(args.cfg, {"env": {"args": base.env.args, "id": envs[0] if envs else base.env.id}})
    return dataclasses.replace(args, cfg=cfg)


def _refuse_swept_flags(arguments: list[str], cfg: Config) -> None:
    """Refuses a flag for a setting that the sweep overrides; values of presets and files just lose."""
    given = {word.partition("=")[0].replace("_", "-") for word in arguments if is_flag(word)}
    for flag in (f"--{name.replace('_', '-')}" for name in swept(cfg.members)):
        if flag in given:
            raise UserError(f"{flag} contradicts --sweep {plain(cfg.sweep)}; give only one of them")


def _option(arguments: list[str], flag: str) -> str | None:
    """Returns the last value of `--flag value` or `--flag=value`, for the defaults of the real parse."""
    value = None
    for word, following in pairwise([*arguments, ""]):
        if word == flag:
            value = following
        elif word.startswith(flag + "="):
            value = word.partition("=")[2]
    return value


def _join_sweeps(arguments: list[str]) -> list[str]:
    """Joins --sweep A=1,2 --sweep B=3,4 to one --sweep A=1,2 B=3,4 at the end; other words between them stay."""
    others, sweeps, takes = list[str](), list[str](), ""
    for word in arguments:
        flag, _, value = word.partition("=")
        if flag == "--sweep":
            if takes == "any":
                return ["--sweep"]  # which has no value
            sweeps, takes = [*sweeps, *filter(None, [value])], "some" if value else "any"
        elif not is_flag(word) and (takes == "any" or (takes and ("=" in word or NUMBERS.fullmatch(word)))):
            sweeps, takes = [*sweeps, word], "some"
        else:
            others, takes = [*others, word], ""
    if takes == "any":
        sweeps = []
    return [*others, "--sweep", *sweeps] if len(others) < len(arguments) else others


@dataclass(frozen=True)
class PresetsArgs:
    """List the presets and what they change from the defaults."""


def list_presets(arguments: list[str]) -> int:
    """Prints a table per preset, for `t3d presets`."""
    read_flags(PresetsArgs, arguments, "t3d presets")
    console = PlainConsole()
    for name, (purpose, _) in PRESETS.items():
        console.print(labelled(f"{name}:", "bold", purpose))
        if changes := diff(preset(name), Config(preset=name)):
            table = Table("setting", "default", name)
            for key, (default, value) in changes.items():
                table.add_row(key, plain(default), plain(value))
            console.print(table)
        console.print()
    return 0
