"""What to do after a run: its policy file, and commands worth trying."""

from __future__ import annotations

import importlib.util
import shlex
import shutil
from pathlib import Path

from rich.text import Text

from t3d.app.plain_console import PlainConsole, labelled
from t3d.app.safe_output import printable
from t3d.config import Member
from t3d.events import End
from t3d.files import display_path
from t3d.sinks.process import written_for
from t3d.store.reader import Run

SHOWN_BY = {  # a run written for other tools
    "tensorboard": ("tensorboard --logdir {path}", "its curves in TensorBoard"),
    "wandb": ("wandb sync {path}/wandb/offline-run-*", "upload it to W&B"),
}


def print_next_commands(run: Run, end: End, member: Member, console: PlainConsole, *, alarmed: bool) -> None:
    """Prints the policy file and commands worth trying; after an alarm, none that trains on with the same settings."""
    kind = "best" if run.evals else "last"
    policy = run.path / kind / f"{member.name}.safetensors"
    if policy.is_file():
        print_path("policy", policy, console)
    else:
        console.print(f"  no policy: {display_path(policy)} is missing", soft_wrap=True)
    where = shlex.quote(display_path(run.path))
    if not end.saved:
        console.print(labelled("\nThe run could not be saved:", "red", f"{end.text}; its end is lost"), soft_wrap=True)
        return
    if end.reason != "finished":
        exactly = "" if run.cfg.async_actors else "exactly "
        console.print(f"\nContinue {exactly}from here with:\n  t3d resume {where}", soft_wrap=True)
        return
    console.print("\nFirst see to the alarm above; then try:" if alarmed else "\nNext, try:")
    if shutil.which("t3d") is None:
        console.print(
            "  . .venv/bin/activate" if Path(".venv/bin/activate").exists() else "  alias t3d='python -m t3d'"
        )
    commands = {f"t3d eval {where}": "evaluate the best policy on ten fresh episodes"}
    if not alarmed:
        commands[f"t3d resume {where} --total-steps {2 * end.step}"] = "train twice as long"
    if len(run.cfg.members) == 1 and not alarmed:
        settings = shlex.quote(display_path(run.path / "config.toml"))
        commands[f"t3d train --config {settings} --seeds 0 1 2"] = "train three seeds at once with the same settings"
    if run.cfg.env.id == "Pendulum-v1" and not alarmed:
        commands["t3d train HalfCheetah-v5"] = "train on a harder task (an hour or two on two cores)"
    else:
        commands[f"t3d plot {where}"] = "plot the curve again; docs/metrics.md explains the other metrics"
    written = written_for(run.path) if run.cfg.sinks else []
    for name in run.cfg.sinks:
        if name in written and importlib.util.find_spec(name):
            command, about = SHOWN_BY[name]
            commands[command.format(path=where)] = about
    for command, about in commands.items():
        console.print(Text.assemble(f"  {printable(command)}  ", (f"# {about}", "dim")), soft_wrap=True)


def print_path(what: str, path: Path, console: PlainConsole) -> None:
    """Prints where something was written."""
    console.print(f"  {what:<7} {display_path(path)}", soft_wrap=True)
