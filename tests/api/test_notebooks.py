"""Runs in a notebook, whose kernel executes it as a user's does; and the notebooks of examples/."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are executed by nbclient")
from nbclient import NotebookClient  # noqa: E402
from nbclient.exceptions import CellExecutionError  # noqa: E402

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = """
import t3d
small = {"preset": "quick", "settings": {"eval.episodes": 2, "eval.every_steps": 500}}
"""
Kernel = Callable[[], NotebookClient]


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[Kernel]:
    """Opens kernels that work in the same folder."""
    with ExitStack() as opened:

        def open_kernel() -> NotebookClient:
            about = {"metadata": {"path": str(tmp_path)}}
            client = NotebookClient(nbformat.v4.new_notebook(), timeout=300, resources=about)
            opened.enter_context(client.setup_kernel())
            run(client, SMALL)
            return client

        yield open_kernel


def run(client: NotebookClient, source: str) -> list[Any]:
    """Runs a cell and returns what it showed."""
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return list(cell.outputs)


def text_of(outputs: list[Any]) -> str:
    return "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)


def html_of(outputs: list[Any]) -> list[str]:
    return [html for output in outputs if (html := output.get("data", {}).get("text/html"))]


def test_a_cell_shows_its_run_once_with_bar_and_curve(kernel: Kernel) -> None:
    client = kernel()
    shown = run(client, 'run = t3d.train("Pendulum-v1", total_steps=1500, name="<b>", **small)\nrun.finish()')
    (html,) = html_of(shown)
    assert '<progress max="1500" value="1500"' in html and html.count("<img") == 1
    assert "finished at step 1,500" in text_of(shown)
    (page,) = html_of(run(client, "run"))
    assert page.count("<img") == 1 and "runs/&lt;b&gt;" in page and "<b>" not in page
    assert not html_of(
        run(client, "quiet = t3d.train('Pendulum-v1', total_steps=1100, **small).finish(progress=False)")
    )
    (figure,) = [output.data for output in run(client, "run.plot()") if "data" in output]
    assert base64.b64decode(figure["image/png"]).startswith(b"\x89PNG")


def test_a_cell_says_what_looks_wrong_with_a_run(kernel: Kernel) -> None:
    client = kernel()
    env = "class Cut(gym.Wrapper):\n    def step(self, action):\n        *rest, _, _, info = self.env.step(action)\n"
    env += "        self.steps += 1\n        return *rest, self.steps == 30, False, info\n"
    env += "    def reset(self, **options):\n        self.steps = 0\n        return self.env.reset(**options)\n"
    make = "import gymnasium as gym\n" + env + "def make_env():\n    return Cut(gym.make('Pendulum-v1'))\n"
    shown = run(client, make + "run = t3d.train(make_env, total_steps=1100, **small)\nrun.finish()")
    assert any(
        "note: " in html and "every episode was terminated after exactly 30 steps" in html for html in html_of(shown)
    )


def test_an_interrupted_cell_saves_says_how_to_continue_and_leaves_nothing_behind(kernel: Kernel) -> None:
    client = kernel()
    run(client, 'import os, signal, threading\nrun = t3d.train("Pendulum-v1", total_steps=40_000, **small)')
    interrupt = "threading.Timer(4, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
    cell = nbformat.v4.new_code_cell(interrupt + "run.finish()")
    client.nb.cells.append(cell)
    with pytest.raises(CellExecutionError, match="KeyboardInterrupt"):
        client.execute_cell(cell, len(client.nb.cells) - 1)
    (html,) = html_of(cell.outputs)
    assert re.search(r"stopped at step [\d,]+ and saved; finish\(\) continues it, later t3d.open_run\(", html)
    step = int(text_of(run(client, "print(run.step)")))
    pid = int(text_of(run(client, "print(os.getpid())")))
    assert not psutil.Process(pid).children(recursive=True)
    other = kernel()  # which would be refused if the folder were locked
    resumed = f"again = t3d.resume(t3d.runs()[0].path, total_steps={step + 50})\n"
    assert f"finished at step {step + 50:,}" in text_of(run(other, resumed + "again.finish(progress=False)"))


def test_a_second_kernel_looks_on_and_stops_a_run_but_does_not_train_it(kernel: Kernel) -> None:
    client = kernel()
    code = "import t3d\nt3d.train('Pendulum-v1', preset='quick', total_steps=200_000, name='long').finish()\n"
    with subprocess.Popen([sys.executable, "-c", code], cwd=client.resources["metadata"]["path"]) as training:
        try:
            folder = Path(client.resources["metadata"]["path"]) / "runs/long"
            while not (folder / "metrics.csv").exists():
                time.sleep(0.2)
            assert "running at step" in text_of(run(client, 'run = t3d.open_run("long")\nrun'))
            refused = "try:\n    run.finish()\nexcept t3d.UserError as error:\n    print(error)"
            assert f"is in use by process {training.pid}" in text_of(run(client, refused))
            run(client, "run.stop()")
            assert training.wait(60) == 0
        finally:
            training.kill()
    assert "stopped at step" in text_of(run(client, 't3d.open_run("long")'))


def test_a_cell_that_is_run_again_starts_a_new_run_or_says_that_there_is_one(kernel: Kernel) -> None:
    client = kernel()
    train = "run = t3d.train('Pendulum-v1', total_steps=1100, **small).finish(progress=False)\nprint(run.path)"
    first, second = (Path(text_of(run(client, train)).strip()) for _ in range(2))
    assert first != second and {*first.parent.iterdir()} == {first, second}
    named = "try:\n    t3d.train('Pendulum-v1', total_steps=1100, name='mine', **small).finish()\n"
    named += "except t3d.UserError as error:\n    print(error)"
    run(client, named)
    assert "a run named runs/mine already exists" in text_of(run(client, named))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_an_example_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    """With fewer steps."""
    shutil.copy(EXAMPLES / "drone.py", tmp_path)
    notebook = nbformat.read(path, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)
    for cell in notebook.cells:
        cell.source = re.sub(r"\b(6|8|10|15)_000\b", "1_500", cell.source)
        cell.source = re.sub(r"episodes=\d+", "episodes=2", cell.source)
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    shown = [html for cell in notebook.cells for html in html_of(cell.get("outputs", []))]
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert shown and pictures
