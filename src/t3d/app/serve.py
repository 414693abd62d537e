"""`t3d serve FILE`: serves a policy over HTTP and WebSocket; `t3d dash [RUNS_DIR]`: shows runs in a browser, live."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from t3d.app.flags import read_flags
from t3d.errors import UserError, check_installed
from t3d.files import printable

if TYPE_CHECKING:
    from t3d.ship.serve import Application

NEEDED = "t3d serve", ("starlette", "uvicorn", "httptools", "websockets", "prometheus_client"), "serve"
DASHBOARD = "the dashboard", ("starlette", "uvicorn", "plotly"), "dash"  # what it needs
TOKEN = "T3D_TOKEN"  # noqa: S105 (the name of a variable)
SHORTEST_TOKEN = 16  # characters
LONGEST_SECONDS = 30.0  # of --max-seconds: a connection without an answer is closed after a minute


@dataclass(frozen=True)
class ServeArgs:
    """Serve a policy over HTTP and WebSocket: POST /act and the WebSocket /ws turn observations into actions.

    GET /info says what the policy is, /health whether it is served, and /metrics has numbers for Prometheus.
    """

    file: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FILE")]
    """A run folder (its best policy), a policy file, a checkpoint, or what t3d export wrote (.onnx)."""
    seed: Annotated[str | None, tyro.conf.arg(metavar="SEED")] = None
    """Which seed's policy of a run folder or checkpoint; default: the one with the highest evaluation."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on; with any other than this machine's own, every request needs the token."""
    port: Annotated[int, tyro.conf.arg(metavar="N")] = 8701
    """Port to listen on; 0: a free one."""
    max_batch: Annotated[int, tyro.conf.arg(metavar="N")] = 256
    """Most observations in one request."""
    max_bytes: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Most bytes in one request; default: what a full batch takes in JSON, from 64 KiB to 8 MiB."""
    max_seconds: Annotated[float, tyro.conf.arg(metavar="S")] = 5.0
    """Most seconds in which a request must arrive, and in which it is answered."""
    max_queue: Annotated[int, tyro.conf.arg(metavar="N")] = 64
    """Most requests at once that are being received, wait or are answered; others get status 503."""
    max_connections: Annotated[int, tyro.conf.arg(metavar="N")] = 128
    """Most open connections, WebSockets included."""


@dataclass(frozen=True)
class DashArgs:
    """Show the runs in a folder in a browser, while they train and afterwards. Prints the address to open."""

    root: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUNS_DIR")] = Path("runs")
    """Folder that contains the runs."""
    port: Annotated[int | None, tyro.conf.arg(metavar="N")] = None
    """Port to listen on; default: 8700, or a free one if that is taken."""
    host: Annotated[str, tyro.conf.arg(metavar="ADDRESS")] = "127.0.0.1"
    """Address to listen on; with any other than this machine's own, everything needs the token."""


def main(arguments: list[str]) -> int:
    """Serves until Ctrl-C or SIGTERM, and says what it has served."""
    args = read_flags(ServeArgs, arguments, "t3d serve")
    _check(args)
    for library in ("OPENBLAS", "OMP", "MKL"):
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")  # threads for products as small as these only wait
    from t3d import web  # noqa: PLC0415 (needs the extra)
    from t3d.policy.files import load_policy  # noqa: PLC0415 (imports NumPy)
    from t3d.ship.serve import Application, Limits, serve  # noqa: PLC0415

    token = os.environ.get(TOKEN) or ("" if args.host in web.LOOPBACK else web.new_token())
    policy = load_policy(args.file, seed=args.seed)
    limits = Limits(args.max_batch, args.max_bytes, args.max_seconds, args.max_queue, args.max_connections)
    application = Application(policy, web.Access(args.host, token=token), limits)
    opened = web.listen(args.host, [args.port], "t3d serve")
    address = web.address_of(args.host, opened.getsockname()[1])

    def announce() -> None:
        say(f"serving {policy!r}")
        say(f"  http://{address}/act  (also /info, /health, /metrics; WebSocket ws://{address}/ws; Ctrl-C ends it)")
        if token and TOKEN not in os.environ:
            say(f"  every request needs the header  Authorization: Bearer {token}  (or set your own token in {TOKEN})")
        say(f"  {_curl(application, address, token)}")

    serve(opened, application, announce)
    say(f"stopped after {application.metrics.in_words()}")
    return 0


def say(text: str) -> None:
    """Prints at once: whoever started the server may be waiting for its address."""
    print(printable(text), flush=True)  # noqa: T201


def dashboard(arguments: list[str]) -> int:
    """Serves the dashboard until Ctrl-C, for `t3d dash`."""
    args = read_flags(DashArgs, arguments, "t3d dash")
    check_installed(*DASHBOARD)
    if not os.path.isdir(args.root):  # noqa: PTH112 (Path.is_dir raises where this says no)
        raise UserError(f"there is no folder {args.root}; t3d train writes runs to runs/, or name their folder")
    if (args.root / "events.jsonl").exists():
        raise UserError(f"{args.root} is a run itself; t3d dash {args.root.parent} shows it among the others")
    from t3d.dash.process import NICE, address_of, listen, serve  # noqa: PLC0415 (needs the extra)

    opened, access = listen(args.host, args.port)
    say(f"dashboard: {address_of(access)}   (Ctrl-C ends it)")
    os.nice(NICE)  # not lower_priority: the session is that of a terminal, whose shell would be lowered too
    serve(opened, args.root, access)
    return 0


def _check(args: ServeArgs) -> None:
    check_installed(*NEEDED)
    for name in ("batch", "bytes", "queue", "connections"):
        value = getattr(args, f"max_{name}")
        if value is not None and value < 1:
            raise UserError(f"--max-{name} must be at least 1")
    if not 0 < args.max_seconds <= LONGEST_SECONDS:
        raise UserError(f"--max-seconds must be above 0 and at most {LONGEST_SECONDS:g}")
    token = os.environ.get(TOKEN)
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UserError(f"{TOKEN} must have at least {SHORTEST_TOKEN} printable ASCII characters, or not be set")


def _curl(application: Application, address: str, token: str) -> str:
    """A command that asks the server something: for an action if the policy sees no images, which are too long."""
    sees_images = bool(application.policy.spec.images)
    words = ["curl", "-s", shlex.quote(f"http://{address}/{'info' if sees_images else 'act'}")]
    if token:
        is_own = TOKEN in os.environ
        words += ["-H", f'"authorization: Bearer ${TOKEN}"' if is_own else f"'authorization: Bearer {token}'"]
    if not sees_images:
        words += ["-H", "'content-type: application/json'", "-d", shlex.quote(application.messages.example().decode())]
    return " ".join(words)
