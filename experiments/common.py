"""What several experiments share: where they run, runs that continue, files, tables in pages, and times."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

import t3d
from t3d.config import Config
from t3d.events import Event
from t3d.insight import drawing as pictures
from t3d.policy.spec import Spec
from t3d.store.folder import versions
from t3d.types import Rollout, row_sizes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HALF_CHEETAH_EPISODE = 1000  # steps


def gpu_name() -> str:
    import torch  # noqa: PLC0415 (a second, and not needed to draw)

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def machine() -> str:
    return f"{gpu_name()}, {psutil.cpu_count()} cores ({platform.machine()})"


def train_or_resume(cfg: Config, **how: Any) -> Iterator[Event]:
    """Trains in the folder that the settings name, or continues the run that is there."""
    folder = Path(cfg.run.root, cfg.run.name)
    return t3d.resume(folder, cfg=cfg, **how) if folder.is_dir() else t3d.train(cfg, **how)


def write_results(file: str | Path, **results: Any) -> None:
    """Writes results with the versions that they are of."""
    Path(file).write_text(json.dumps({"versions": versions(), **results}, indent=1) + "\n")


@contextmanager
def drawing(file: Path, size: tuple[float, float]) -> Iterator[Figure]:
    """Provides a figure of a size in inches, and writes it."""
    with pictures.drawing(size) as figure:
        yield figure
    pictures.save(figure, file)


def write_into(page: Path, name: str, script: str, text: str) -> None:
    """Replaces what a script has written into a page before, if the page has a place for it."""
    first, last = f"<!-- {name}: written by experiments/{script} -->", f"<!-- end of {name} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else ""
    if first in old:
        before, rest = old.split(first)
        page.write_text(f"{before}{first}\n\n{text}\n\n{last}{rest.split(last)[1]}", encoding="utf-8")


def seconds(function: Callable[[], object], times: int = 1) -> float:
    """How long one call takes."""
    started = time.perf_counter()
    for _ in range(times):
        function()
    return (time.perf_counter() - started) / times


def random_rollout(spec: Spec, member: int, number: int, size: int) -> Rollout:
    """The number-th block of random transitions, of episodes of 1,000 steps."""
    rows = np.random.default_rng(0).normal(size=(size, sum(row_sizes(spec)))).astype(np.float32)
    episode, step = np.divmod(np.arange(number * size, (number + 1) * size), HALF_CHEETAH_EPISODE)
    origins = np.column_stack([0 * step, episode, step, 2 * (step == HALF_CHEETAH_EPISODE - 1)]).astype(np.int32)
    return Rollout(member, rows, origins, spec.observation_size, [], [])
