"""How large the code is: `python scripts/code_size.py [REVISION ...]`, by default the working tree.

Lines, files and statements (ast) of src, and of src with experiments; then functions and files of the package that four
things pass through, counted while they happen: a transition from an environment's step to the update that samples it, a
policy from the weights to an action, an event from an update to the log, a setting from its flag to the learner.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WAYS = """
import inspect, os, sys, tempfile, threading
from contextlib import ExitStack
from pathlib import Path
calls, package = set(), str(Path(sys.argv[1]) / "t3d") + os.sep
def profile(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package) and code.co_name[0] != "<":
        calls.add((code.co_filename, code.co_qualname))
def way(name, function):
    calls.clear()
    sys.setprofile(profile)
    try:
        result = function()
    finally:
        sys.setprofile(None)
    print(f"  {name}: {len(calls)} functions in {len({file for file, _ in calls})} files")
    return result
from t3d.app.train import parse
from t3d.config import merge
from t3d.run.build import assemble
from t3d.run.placement import resolve
from t3d.types import Requests
from t3d.world.make import env_factory
flags = "Pendulum-v1 --random-steps 0 --td3.batch-size 4 --engine eager --threads 1 --total-steps 99 --td3.tau 0.01"
cfg = way("setting, from its flag to the configuration", lambda: parse(flags.split()).cfg)
with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
    cfg = resolve(merge(cfg, {"run": {"root": folder}}))
    try:
        make = env_factory(cfg.env)
    except Exception:  # until 0.4
        make = env_factory(cfg.env.id)
    requests, surroundings = Requests(threading.Event(), threading.Event()), []
    if "surroundings" in inspect.signature(assemble).parameters:  # since 0.5
        from t3d.run.surroundings import Surroundings
        surroundings = [Surroundings()]
    training = assemble(cfg, requests, make, opened, *surroundings)
    parts = training.parts
    training.publisher.publish()
    for _ in range(8):
        parts.memory.add(*parts.collector.poll().rollouts)
    def transition():
        parts.memory.add(*parts.collector.poll().rollouts)
        return parts.learner.run(2)
    trace = way("transition, inline", transition)
    def policy():
        training.publisher.publish()
        return parts.collector.poll()
    way("policy, inline", policy)
    parts.counters.step = 9
    def event():
        for update in training.reporter.learned(trace):
            training.saver.folder.write(update)
    way("event", event)
"""


def statements(text: str) -> int:
    return sum(isinstance(node, ast.stmt) for node in ast.walk(ast.parse(text)))


def report(tree: Path) -> None:
    for folders in (["src"], ["src", "experiments"]):
        files = sorted(file for folder in folders for file in (tree / folder).rglob("*.py"))
        texts = [file.read_text(encoding="utf-8") for file in files]
        lines, count = sum(text.count("\n") for text in texts), sum(map(statements, texts))
        print(f"  {' and '.join(folders)}: {lines:,} lines, {len(files)} files, {count:,} statements", flush=True)
    environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
    subprocess.run([sys.executable, "-c", WAYS, tree / "src"], env=environment, check=False)


def main(revisions: list[str]) -> None:
    if not revisions:
        print("working tree:", flush=True)
        report(ROOT)
    for revision in revisions:
        print(f"{revision}:", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            archive = subprocess.run(["git", "archive", revision], cwd=ROOT, capture_output=True, check=True)
            subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
            report(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
