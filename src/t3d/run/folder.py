"""The run folder: config.toml, events.jsonl, metrics.csv and the policies. One run writes one folder, ever."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import platform
import re
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from t3d.config import Config, to_toml
from t3d.errors import UserError
from t3d.events import EpisodeEnd, Eval, Event, Update, to_line
from t3d.types import Evaluation, PolicySnapshot, Spec
from t3d.version import __version__
from t3d.world.policy import save_policy

COMMON = ["event", "step", "member", "seed", "time"]
IN_METRICS: tuple[type[Event], ...] = (EpisodeEnd, Update, Eval)


class RunFolder:
    """An open run folder; every event is on disk, line by line, as soon as it is written."""

    def __init__(self, cfg: Config, spec: Spec) -> None:
        self.path = _create(cfg)
        self.cfg = cfg
        self.spec = spec
        repeatable = dataclasses.replace(
            cfg, run=dataclasses.replace(cfg.run, name="")
        )  # a repetition is another folder
        (self.path / "config.toml").write_text(to_toml(repeatable), encoding="utf-8")
        self._events = (self.path / "events.jsonl").open("w", encoding="utf-8", buffering=1)
        self._metrics = (self.path / "metrics.csv").open("w", encoding="utf-8", buffering=1, newline="")
        self._table = csv.DictWriter(self._metrics, _columns(), extrasaction="ignore")
        self._table.writeheader()

    def write(self, event: Event) -> None:
        """Appends the event to events.jsonl and, if it carries figures, to metrics.csv."""
        self._events.write(to_line(event) + "\n")
        if isinstance(event, IN_METRICS):
            self._table.writerow({"event": event.event, **vars(event)})

    def save_best(self, evaluation: Evaluation) -> None:
        """Keeps the policy that was just evaluated as its member's best."""
        about = {"step": evaluation.step, "mean_return": float(evaluation.returns.mean())}
        self._save("best", evaluation.snapshot, evaluation.member, about)

    def save_last(self, snapshot: PolicySnapshot, step: int) -> None:
        """Keeps every member's newest policy; one that has diverged does not replace a sound one."""
        for member, parameters in enumerate(snapshot.flat):
            if np.isfinite(parameters).all():
                self._save("last", snapshot, member, {"step": step})

    def close(self) -> None:
        """Closes the files."""
        self._events.close()
        self._metrics.close()

    def _save(self, kind: str, snapshot: PolicySnapshot, member: int, about: dict[str, Any]) -> None:
        seed = self.cfg.seeds[member]
        about = {"env": self.cfg.env.id, "seed": seed, "t3d": __version__, **about}
        save_policy(self.path / kind / f"seed-{seed}", snapshot, member, self.spec, about)


def versions() -> dict[str, str]:
    """What this run's numbers depend on."""
    packages = ("torch", "numpy", "gymnasium", "mujoco")
    found = {name: metadata.version(name) for name in packages if _installed(name)}
    return {"t3d": __version__, "python": platform.python_version(), **found}


def _installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def _columns() -> list[str]:
    figures = [field.name for kind in IN_METRICS for field in dataclasses.fields(kind)]
    lists = ["returns", "lengths"]
    return list(dict.fromkeys([*COMMON, *(name for name in figures if name not in lists)]))


def _create(cfg: Config) -> Path:
    """A folder that did not exist before this call."""
    root = Path(cfg.run.root)
    env = re.sub(r"[^A-Za-z0-9._-]+", "-", cfg.env.id) or "custom"
    automatic = f"{env}-{cfg.preset}-{time.strftime('%Y%m%d-%H%M%S')}"
    names = [cfg.run.name] if cfg.run.name else [automatic, *(f"{automatic}-{again}" for again in range(2, 1000))]
    try:
        root.mkdir(parents=True, exist_ok=True)
        for name in names:
            with contextlib.suppress(FileExistsError):
                (root / name).mkdir()
                return root / name
    except OSError as error:
        raise UserError(f"cannot write run folders in {root}: {error.strerror}; choose another --run.root") from None
    raise UserError(f"a run named {root / names[0]} exists already; choose another --run.name or remove that folder")
