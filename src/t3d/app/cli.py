"""The command line: `t3d COMMAND ...`. A command is imported only when it is called, so that --help is instant."""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import os
import sys
import traceback
from pathlib import Path
from typing import Literal, NamedTuple

from t3d.app.terminal import safe_streams
from t3d.errors import EnvironmentFailed, UserError, did_you_mean
from t3d.files import printable
from t3d.version import __version__

PACKAGE = Path(__file__).parents[1]
SAVING = ("train", "resume")  # their result is the run folder, not what they print


class Imports(logging.Handler):
    """Prints which code of the user's a command is about to run."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(record.getMessage()), file=sys.stderr, flush=True)  # noqa: T201


class Command(NamedTuple):
    """A command's lines in the help, what of the user's own code it imports, and the function that it calls."""

    usage: str
    about: str
    imports: Literal["config", "typed", ""] = ""  # what a run's config names, only what was typed, or nothing
    function: str = ""  # main of the module in app that has its name, unless it is said


COMMANDS = {
    "train": Command("train ENV [options]", "train a policy and write the results to a run folder", "config"),
    "resume": Command(
        "resume RUN", "continue a stopped or killed run exactly where it was", "config", "t3d.app.train:resume_run"
    ),
    "tune": Command("tune ENV --space ...", "search settings with Optuna; judge the best on fresh seeds", "config"),
    "eval": Command(
        "eval RUN", "evaluate a run's best policy on fresh episodes, without noise", "config", "t3d.app.play:evaluate"
    ),
    "plot": Command("plot RUN...", "plot the learning curves of one or more runs", "", "t3d.app.compare:plot"),
    "compare": Command("compare A B...", "compare groups of runs: means, intervals, differences"),
    "record": Command("record RUN", "record a video of a run's best policy (mp4)", "config", "t3d.app.play:record"),
    "play": Command("play RUN", "watch a run's best policy in a window", "config", "t3d.app.play:play"),
    "export": Command("export RUN", "write a run's best policy as one ONNX or C file"),
    "serve": Command("serve FILE", "serve a policy over HTTP and WebSocket"),
    "explain": Command(
        "explain RUN|ENV", "take one real update apart into the steps of the paper", "typed", "t3d.app.pages:explain"
    ),
    "report": Command(
        "report RUN...", "write one HTML file about runs, to keep, mail or print", "", "t3d.app.pages:report"
    ),
    "doctor": Command("doctor [ENV]", "check an environment for problems, or describe this machine", "typed"),
    "runs": Command("runs [show RUN]", "list the runs in a folder, or show one in detail"),
    "dash": Command(
        "dash [RUNS_DIR]", "show runs in a browser, while they train and afterwards", "", "t3d.app.serve:dashboard"
    ),
    "sinks": Command("sinks RUN...", "write runs for TensorBoard or W&B"),
    "bench": Command("bench [BENCHMARK]", "measure how fast this machine trains", "typed", "t3d.bench.command:main"),
    "presets": Command("presets", "list the presets and what they change", "", "t3d.app.train:list_presets"),
}


def help_text() -> str:
    """Returns what `t3d --help` prints."""
    rows = "\n".join(f"  {command.usage:<24}{command.about}" for command in COMMANDS.values())
    return (
        f"usage: t3d COMMAND [options]\n\nT3D trains policies for continuous control: TD3 and TD7.\n\n{rows}\n\n"
        "  t3d COMMAND --help      show all options of a command\n"
        "  t3d --version           show the version\n\n"
        "example: t3d train Pendulum-v1 --preset quick"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns the exit code; a user error prints one sentence and returns 2."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    with safe_streams() as stdout:
        if name in ("-h", "--help", "help", "--version"):
            print(f"t3d {__version__}" if name == "--version" else help_text())  # noqa: T201
            return 0
        try:
            code = _run(name, rest)
        except (UserError, EnvironmentFailed, KeyboardInterrupt) as error:
            frames = _frames(error) if isinstance(error, EnvironmentFailed) else []
            line = "interrupted" if isinstance(error, KeyboardInterrupt) else f"error: {error}"
            text = "".join(frames) + "\n".join([line, *getattr(error, "__notes__", [])])
            print(printable(text), file=sys.stderr)  # noqa: T201
            return 130 if isinstance(error, KeyboardInterrupt) else 2 if isinstance(error, UserError) else 1
        stdout.flush()
        return code or (1 if name not in SAVING and stdout.failures else 0)


def _run(name: str, rest: list[str]) -> int:
    if name not in COMMANDS:
        raise UserError(f"unknown command {name}{did_you_mean(name, COMMANDS)} (t3d --help lists them)")
    imports = logging.getLogger("t3d.imports")
    imports.handlers, imports.propagate = [Imports()], False
    imports.setLevel(logging.INFO)
    if "JPY_PARENT_PID" in os.environ and os.environ.get("TERM") == "xterm-color":
        os.environ["TERM"] = "dumb"  # `!t3d` in a notebook: IPython's pseudo-terminal redraws nothing
    atexit.register(gc.freeze)  # otherwise Python looks for cycles in all of torch: 1 s on a busy machine
    from t3d.modules import importing  # noqa: PLC0415 (not for --help)

    module, _, function = (COMMANDS[name].function or f"t3d.app.{name}:main").partition(":")
    with importing(None if COMMANDS[name].imports else ()):
        code: int = getattr(importlib.import_module(module), function)(rest)
    return code


def _frames(failure: EnvironmentFailed) -> list[str]:
    """Formats the environment's traceback without T3D's frames."""
    raised = failure.__cause__ or failure
    frames = traceback.extract_tb(raised.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(str(PACKAGE))]
    return ["Traceback of the environment:\n", *traceback.format_list(own), *traceback.format_exception_only(raised)]


if __name__ == "__main__":
    sys.exit(main())
