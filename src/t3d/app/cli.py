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
from typing import TYPE_CHECKING, Literal, NamedTuple

from t3d.app.safe_output import lost_output, printable, safe_streams
from t3d.version import __version__

if TYPE_CHECKING:
    from t3d.errors import EnvironmentFailed

PACKAGE = Path(__file__).parents[1]
SAVING = ("train", "resume")  # their result is the run folder, not what they print


class Imports(logging.Handler):
    """Prints which code of the user's a command is about to run."""

    def emit(self, record: logging.LogRecord) -> None:
        print(printable(record.getMessage()), file=sys.stderr, flush=True)  # noqa: T201


class Command(NamedTuple):
    """A command's module, its lines in the help, and what of the user's own code it imports."""

    module: str
    usage: str
    about: str
    imports: Literal["config", "typed", ""] = ""  # what a run's config names, only what was typed, or nothing


COMMANDS = {
    "train": Command(
        "t3d.app.train", "train ENV [options]", "train a policy and write the results to a run folder", "config"
    ),
    "resume": Command(
        "t3d.app.resume", "resume RUN", "continue a stopped or killed run exactly where it was", "config"
    ),
    "eval": Command(
        "t3d.app.evaluate", "eval RUN", "evaluate a run's best policy on fresh episodes, without noise", "config"
    ),
    "plot": Command("t3d.app.plot", "plot RUN...", "plot the learning curves of one or more runs"),
    "compare": Command("t3d.app.compare", "compare A B...", "compare groups of runs: means, intervals, differences"),
    "record": Command("t3d.app.record", "record RUN", "record a video of a run's best policy (mp4)", "config"),
    "export": Command("t3d.app.export", "export RUN", "write a run's best policy as one ONNX or C file"),
    "serve": Command("t3d.app.serve", "serve FILE", "serve a policy over HTTP and WebSocket"),
    "explain": Command(
        "t3d.app.explain", "explain RUN|ENV", "take one real update apart into the fifteen steps of TD3", "typed"
    ),
    "report": Command("t3d.app.report", "report RUN...", "write one HTML file about runs, to keep, mail or print"),
    "doctor": Command(
        "t3d.app.doctor", "doctor [ENV]", "check an environment for problems, or describe this machine", "typed"
    ),
    "runs": Command("t3d.app.runs", "runs [show RUN]", "list the runs in a folder, or show one in detail"),
    "dash": Command("t3d.app.dash", "dash [RUNS_DIR]", "show runs in a browser, while they train and afterwards"),
    "sinks": Command("t3d.app.sinks", "sinks RUN...", "write runs for TensorBoard or W&B"),
    "bench": Command(
        "t3d.bench.command", "bench [update|train|growth]", "measure how fast this machine trains", "typed"
    ),
    "presets": Command("t3d.app.presets_table", "presets", "list the presets and what they change"),
}


def help_text() -> str:
    """Returns what `t3d --help` prints."""
    rows = [f"  {command.usage:<24}{command.about}" for command in COMMANDS.values()]
    lines = [
        "usage: t3d COMMAND [options]",
        "",
        "T3D trains TD3 policies for continuous control.",
        "",
        *rows,
        "",
        "  t3d COMMAND --help      show all options of a command",
        "  t3d --version           show the version",
        "",
        "example: t3d train Pendulum-v1 --preset quick",
    ]
    return "\n".join(lines)


@safe_streams()
def main(arguments: list[str] | None = None) -> int:
    """Runs a command and returns the exit code; a user error prints one sentence and returns 2."""
    from t3d.errors import EnvironmentFailed, UserError, did_you_mean  # noqa: PLC0415

    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help", "--version"):
        print(f"t3d {__version__}" if name == "--version" else help_text())  # noqa: T201
        return 0
    imports = logging.getLogger("t3d.imports")
    imports.handlers, imports.propagate = [Imports()], False
    imports.setLevel(logging.INFO)
    try:
        if name not in COMMANDS:
            raise UserError(f"unknown command {name}{did_you_mean(name, COMMANDS)} (t3d --help lists them)")
        if "JPY_PARENT_PID" in os.environ and os.environ.get("TERM") == "xterm-color":
            os.environ["TERM"] = "dumb"  # `!t3d` in a notebook: IPython's pseudo-terminal redraws nothing
        atexit.register(gc.freeze)  # otherwise Python looks for cycles in all of torch: 1 s on a busy machine
        from t3d.modules import importing  # noqa: PLC0415 (not for --help)

        with importing(None if COMMANDS[name].imports else ()):
            code: int = importlib.import_module(COMMANDS[name].module).main(rest)
    except UserError as error:
        lines = [f"error: {error}", *getattr(error, "__notes__", [])]
        print(printable("\n".join(lines)), file=sys.stderr)  # noqa: T201
        return 2
    except EnvironmentFailed as failure:
        print(printable(environment_traceback(failure)), file=sys.stderr)  # noqa: T201
        return 1
    except KeyboardInterrupt as error:
        print(printable("\n".join(["interrupted", *getattr(error, "__notes__", [])])), file=sys.stderr)  # noqa: T201
        return 130
    return code or (1 if name not in SAVING and lost_output() else 0)


def environment_traceback(failure: EnvironmentFailed) -> str:
    """Formats the environment's traceback without T3D's frames, then where it failed and how to resume."""
    raised = failure.__cause__ or failure
    frames = traceback.extract_tb(raised.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(str(PACKAGE))]
    lines = ["Traceback of the environment:\n", *traceback.format_list(own), *traceback.format_exception_only(raised)]
    return "".join(lines) + "\n".join([f"error: {failure}", *getattr(failure, "__notes__", [])])


if __name__ == "__main__":
    sys.exit(main())
