"""T3D in a notebook, whose kernel executes it as a user's does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="notebooks are executed by nbclient")
from nbclient import NotebookClient  # noqa: E402

pytestmark = pytest.mark.system

SMALL = """
import t3d

settings = {"env": {"id": "Pendulum-v1"}, "preset": "quick", "total_steps": 1500, "run": {"name": "cell"}}
"""


@pytest.fixture
def notebook(tmp_path: Path) -> Iterator[NotebookClient]:
    client = NotebookClient(nbformat.v4.new_notebook(), timeout=120, resources={"metadata": {"path": str(tmp_path)}})
    with client.setup_kernel():
        yield client


def output_of(client: NotebookClient, source: str) -> str:
    cell = nbformat.v4.new_code_cell(source)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return "".join(output.get("text", "") for output in cell.outputs)


def test_cells_that_leave_continue_and_take_over_a_run(notebook: NotebookClient) -> None:
    output_of(notebook, SMALL)
    left = "run = t3d.train(settings)\nfor event in run:\n    if event.step >= 1100:\n        break\nprint(event.step)"
    assert int(output_of(notebook, left)) >= 1100
    taken_over = "events = t3d.resume(run.path)\nprint(next(events).event)"
    assert output_of(notebook, taken_over).strip() == "resumed"
    assert output_of(notebook, "*_, end = run\nprint(end.reason, end.step)").strip() == "finished 1500"


def test_a_cell_that_is_interrupted_saves_its_run_and_can_be_run_again(notebook: NotebookClient) -> None:
    output_of(notebook, SMALL + "import os, signal\nrun = t3d.train(settings)")
    loop = """
try:
    for event in run:
        if event.step >= 1100 and not interrupted:
            interrupted = True
            os.kill(os.getpid(), signal.SIGINT)  # as the button does
except KeyboardInterrupt as error:
    print(*error.__notes__)
else:
    print(event.reason)
"""
    assert "t3d resume" in output_of(notebook, f"interrupted = False\n{loop}")
    assert output_of(notebook, loop).strip() == "finished"


def test_torch_and_its_threads_are_the_notebooks_own_again(notebook: NotebookClient) -> None:
    """Whichever came first, T3D or torch; a run in a thread leaves the button that interrupts as it was."""
    before = "import os, torch\ntorch.set_num_threads(3)\nbefore = torch.get_num_threads(), torch.is_grad_enabled()"
    output_of(notebook, before + SMALL + "import signal, threading\nhandler = signal.getsignal(signal.SIGINT)")
    train = "for event in (run := t3d.train({**settings, 'run': {}})):\n    pass\nprint(event.reason)"
    assert output_of(notebook, train).strip() == "finished"
    in_a_thread = """
run = t3d.train({**settings, "run": {"name": "threaded"}})
next(run)
thread = threading.Thread(target=lambda: list(run))
thread.start()
thread.join()
try:
    os.kill(os.getpid(), signal.SIGINT)
    import time; time.sleep(1)
except KeyboardInterrupt:
    print("interrupted")
print(before == (torch.get_num_threads(), torch.is_grad_enabled()), signal.getsignal(signal.SIGINT) is handler)
"""
    assert output_of(notebook, in_a_thread).split() == ["interrupted", "True", "True"]


def test_idle_threads_do_not_spin_for_long_in_a_notebook(notebook: NotebookClient) -> None:
    assert output_of(notebook, "import t3d, torch, os\nprint(os.environ['GOMP_SPINCOUNT'])").strip() == "2000"


def test_commands_print_plain_lines(notebook: NotebookClient) -> None:
    """IPython runs them in a pseudo-terminal, and asks all programs for colours."""
    output_of(notebook, "import sys")
    train = "!{sys.executable} -m t3d train Pendulum-v1 --preset quick --total-steps 1500 --run.name cell --no-video"
    said = output_of(notebook, train)
    assert "\x1b" not in said and len(said) < 6000, said
    assert "step     1,500  seed 0  return" in said and "Trained 1,500 steps per seed" in said
    for command, words in {
        "runs show cell": "Pendulum-v1",
        "eval cell --episodes 1": "mean",
        "eval --help": "--seed",
    }.items():
        said = output_of(notebook, f"!{{sys.executable}} -m t3d {command}")
        assert "\x1b" not in said and words in said
