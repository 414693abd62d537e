"""`t3d train ENV`: trains policies; `t3d resume RUN`: continues a run; `t3d presets`: lists the presets."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

from t3d.app.flags import RunFlags, ShowFlags, is_flag, read_flags, read_known
from t3d.app.serve import DASHBOARD
from t3d.app.session import show
from t3d.app.tables import settings_table
from t3d.app.terminal import PlainConsole, labelled
from t3d.config import Config, RuleConfig, diff, load_toml, merge, plain
from t3d.config.presets import PRESETS, as_config, families, preset
from t3d.config.sweeps import ENV_ARGS, FORM, swept
from t3d.errors import NothingLeft, UserError, check_installed
from t3d.modules import is_own
from t3d.store.reader import locate

OF_SEVERAL = {  # flags of which a second one would replace the first
    "--sweep": "FIELD=V1,V2 OTHER=V1,V2",
    "--env.args": "NAME=VALUE NAME=VALUE",
    "--env.schedule": "NAME=SCHEDULE NAME=SCHEDULE",
    "--env.wrappers": "FIRST SECOND",
    "--eval.args": "NAME=VALUE NAME=VALUE",
    "--eval.sets": "SET:NAME=VALUE SET:NAME=VALUE",
    "--space": "FIELD=LOW..HIGH OTHER=V1,V2",
}


@dataclass(frozen=True, kw_only=True)
class ConfigArgs:
    """What commands that train with new settings share."""

    cfg: Annotated[Config, tyro.conf.arg(name="")]
    config: Annotated[Path | None, tyro.conf.arg(metavar="FILE.toml")] = None
    """A TOML file of settings, e.g. the config.toml of an earlier run."""


Args = TypeVar("Args", bound=ConfigArgs)


@dataclass(frozen=True, kw_only=True)
class TrainArgs(ShowFlags, ConfigArgs):
    """Train a policy on ENV: a Gymnasium id, dm:domain-task, module:id, or module:callable for your own environment.

    Settings come from the defaults, then the preset, then --config, then the flags below.
    """

    resume_or_start: bool = False
    """Resume the run named by --run.name if it exists, otherwise start it; safe to repeat after an interruption."""
    dash: bool = False
    """Show the runs in a browser while it trains, and print the address to open."""


@dataclass(frozen=True, kw_only=True)
class ResumeArgs(RunFlags, ShowFlags):
    """Continue a run from its newest complete checkpoint, as if it had never stopped.

    A run that was killed before its first checkpoint starts over. Other settings stay as they are; a new run with some
    of them changed is t3d train --config RUN/config.toml, then the flags.
    """

    total_steps: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Train up to this many steps per seed instead of the run's original number."""
    actors: Annotated[str | None, tyro.conf.arg(metavar="local:N|ray:N")] = None
    """Change how many actors there are, and where (for runs that had some); environments per seed stay the same."""
    ray_address: Annotated[str | None, tyro.conf.arg(metavar="ADDRESS")] = None
    """Join this Ray cluster from now on; with "" T3D starts one on this machine."""
    ray_cpus: Annotated[float | None, tyro.conf.arg(metavar="CPUS")] = None
    """From now on: CPUs of the cluster that each of its actors reserves; may be a fraction."""
    bad_values: Annotated[Literal["raise", "skip", "clip"] | None, tyro.conf.arg(metavar="raise|skip|clip")] = None
    """From now on: end the run, end the episode, or fix the value when the environment returns an invalid one."""
    hang_seconds: Annotated[float | None, tyro.conf.arg(metavar="SECONDS")] = None
    """From now on: how long an actor's environment may take for one step or reset."""


@dataclass(frozen=True)
class PresetsArgs:
    """List the presets and what they change from the defaults."""


def main(arguments: list[str]) -> int:
    """Trains and prints the results."""
    args = parse(arguments)
    if args.resume_or_start and not args.cfg.run.name:
        raise UserError("--resume-or-start needs --run.name NAME, the run to look for")
    path = Path(args.cfg.run.root) / args.cfg.run.name
    resuming = args.resume_or_start and path.is_dir()
    from t3d.api.run import resume, train  # noqa: PLC0415 (imports Gymnasium)

    begin = partial(resume, path, cfg=args.cfg) if resuming else partial(train, args.cfg)
    try:
        with _dashboard(args) if args.dash else nullcontext():
            return show(begin, args)
    except NothingLeft as left:
        if not resuming:
            raise
        # a scheduler that repeats the command until it succeeds must see success
        print(left, file=sys.stderr if args.json else sys.stdout)
        return 0


def resume_run(arguments: list[str]) -> int:
    """Resumes a run exactly where it was and prints the results, for `t3d resume`."""
    args = read_flags(ResumeArgs, arguments, "t3d resume")
    path = locate(args.run, args.root)
    from t3d.api.run import resume  # noqa: PLC0415 (imports Gymnasium)

    changes = ("total_steps", "actors", "ray_address", "ray_cpus", "bad_values", "hang_seconds")
    return show(partial(resume, path, **{name: getattr(args, name) for name in changes}), args)


def list_presets(arguments: list[str]) -> int:
    """Prints a table per preset, for `t3d presets`."""
    read_flags(PresetsArgs, arguments, "t3d presets")
    console = PlainConsole()
    for name, (purpose, _) in PRESETS.items():
        console.print(labelled(f"{name}:", "bold", purpose))
        if changes := diff(preset(name), Config(preset=name)):
            console.print(settings_table(changes, ""))
        for suited in (family for family in families() if family.preset == name):
            console.print(f"suits {', '.join(suited.ids)}: {suited.because}", soft_wrap=True)
        console.print()
    return 0


@contextmanager
def _dashboard(args: TrainArgs) -> Iterator[None]:
    check_installed(*DASHBOARD)
    from t3d.dash.process import beside  # noqa: PLC0415 (needs the extra)

    with beside(Path(args.cfg.run.root)) as address:
        print(f"dashboard: {address}", file=sys.stderr if args.json or args.quiet else sys.stdout, flush=True)
        yield


def parse(arguments: list[str]) -> TrainArgs:
    """Builds the configuration of a run."""
    return parse_settings(arguments, TrainArgs, "t3d train")


def parse_settings(arguments: list[str], kind: type[Args], prog: str) -> Args:
    """Builds the configuration from preset, file and flags. ENV comes first, or after a flag with a single value."""
    sweeps = _values(arguments, "--sweep")
    for several, example in OF_SEVERAL.items():
        if len(_values(arguments, several)) > 1:
            raise UserError(f"{several} is given twice; name all after one, e.g. {several} {example}")
    if sweeps and (not sweeps[0] or is_flag(sweeps[0])):
        raise UserError(f"--sweep has no value; {FORM}")
    file = next(reversed(_values(arguments, "--config")), None)
    from_file = load_toml(Path(os.path.realpath(file))) if file else {}  # a link that the user names is followed
    flag = next(reversed(_values(arguments, "--preset")), None)
    try:
        base = as_config(from_file, flag)
    except UserError as error:
        raise UserError(f"{file}: {error}" if file else str(error)) from None
    tables: dict[str, Any] = {"env": {"args": {}, "schedule": {}}, "eval": {"args": {}, "sets": {}}}
    args, envs = _read(merge(base, tables), arguments, kind, prog)  # flags go on top of the file's
    given = {word.partition("=")[0].replace("_", "-") for word in arguments if is_flag(word)}
    for flag in sorted(given):
        if not args.cfg.reads(flag.removeprefix("--")):
            raise UserError(f"{flag} is not used: the settings of {args.cfg.algo} are called {args.cfg.section}.NAME")
    for name in swept(args.cfg.members):
        swept_flag = f"--{name.replace('_', '-')}"
        if swept_flag in given or name.removeprefix(ENV_ARGS) in args.cfg.env.args:  # those of presets and files lose
            raise UserError(f"{swept_flag} contradicts --sweep {plain(args.cfg.sweep)}; give only one of them")
    if args.cfg.env.id != base.env.id:
        envs.append(args.cfg.env.id)
    if len(envs) > 1:
        raise UserError(f"{prog} takes one environment, but {' and '.join(envs)} were given")
    env: Any = {name: {**getattr(base.env, name), **getattr(args.cfg.env, name)} for name in ("args", "schedule")}
    env["id"] = envs[0] if envs else base.env.id
    evaluation = {name: {**getattr(base.eval, name), **getattr(args.cfg.eval, name)} for name in ("args", "sets")}
    cfg = merge(args.cfg, {"env": env, "eval": evaluation})
    return dataclasses.replace(args, cfg=cfg)


def _read(base: Config, arguments: list[str], kind: type[Args], prog: str) -> tuple[Args, list[str]]:
    """Parses the flags over a configuration; those of a rule of the user's own are in its file."""
    algo = next(reversed(_values(arguments, "--algo")), base.algo)
    settings = _declared_by(algo) if is_own(algo) else RuleConfig
    if settings.prefix != RuleConfig.prefix or settings is RuleConfig:
        return read_known(kind, arguments, prog, kind(cfg=base), words="ENV")
    flags: Any = Annotated[settings, tyro.conf.arg(name="own")]
    given = merge(settings(), base.own, prefix=settings.prefix)
    both = dataclasses.make_dataclass(kind.__name__, [("own", flags, given)], bases=(kind,), frozen=True, kw_only=True)
    both.__doc__ = kind.__doc__
    args, envs = read_known(both, arguments, prog, both(cfg=dataclasses.replace(base, own={})), words="ENV")
    own = dataclasses.asdict(args.own)
    return dataclasses.replace(args, cfg=merge(args.cfg, {"own": own})), envs


def _declared_by(algo: str) -> type[RuleConfig]:
    """The class of the settings of a rule of the user's own, which is imported."""
    from t3d.algo.rules import rule_of  # noqa: PLC0415 (imports torch)

    return rule_of(algo).settings


def _values(arguments: list[str], flag: str) -> list[str]:
    """Returns the first word of each `--flag value` or `--flag=value`, before the real parse."""
    pairs = pairwise([*arguments, ""])
    return [
        following if word == flag else word.partition("=")[2]
        for word, following in pairs
        if word.partition("=")[0] == flag
    ]
