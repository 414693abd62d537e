"""Reads run folders: live, finished, killed or copied from another machine, all the same."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from t3d.config import Config, load_toml, merge
from t3d.errors import UserError, did_you_mean
from t3d.events import Eval, Event, from_line
from t3d.files import CORRUPT_ERRORS, Refused, open_plain
from t3d.store.history import LARGEST, left_out_in_words
from t3d.types import Spec
from t3d.world.fit import difference, outline
from t3d.world.policy import SavedPolicy, load_policy

LOG = logging.getLogger("t3d.runs")


class Run(NamedTuple):
    """A run folder, read."""

    path: Path
    cfg: Config
    evals: dict[int, list[Eval]]  # by seed, in order

    def best_seed(self) -> int:
        """The seed with the highest evaluation; insight/choose.py asks on fresh episodes."""
        if not self.evals:
            raise UserError(f"{self.path} has no evaluation (t3d runs show {self.path} says how it ended)")
        return max(self.evals, key=lambda seed: best_of(self.evals[seed]).mean_return)

    def known_seed(self, seed: int) -> int:
        """The seed asked for, if it was evaluated."""
        if seed not in self.evals:
            known = ", ".join(map(str, self.evals)) or "none yet"
            raise UserError(f"{self.path} has no evaluation of seed {seed}; it has: {known}")
        return seed

    def env_id(self, given: str | None) -> str:
        """The environment asked for, or the one it was trained on."""
        if not (given or self.cfg.env.id):
            raise UserError(
                f"{self.path} was trained on an environment made in Python; name one with --env module:callable"
            )
        return given or self.cfg.env.id

    def policy(self, seed: int, which: str = "best") -> SavedPolicy:
        """The best or the last policy of a seed; one that says it is another's is refused."""
        stem = self.path / which / f"seed-{seed}"
        policy = load_policy(stem)
        kind, of = policy.about.get("kind", which), policy.about["seed"]
        if (kind, of) != (which, seed):
            raise UserError(f"{stem} holds the {kind!s:.60} policy of seed {of}; files of this run were swapped")
        return policy


def check_fits(policy: SavedPolicy, spec: Spec, env_id: str) -> None:
    """Says so if a policy was trained on an environment of another shape."""
    if changed := difference(outline(policy.spec), outline(spec)):
        raise UserError(f"the policy does not fit {env_id}: {changed}")


def best_of(evals: list[Eval]) -> Eval:
    """The evaluation with the highest mean return, the first of equals."""
    return max(evals, key=lambda one: one.mean_return)


def open_run(text: str | Path, root: str = "runs") -> Run:
    """The run at a path, or of a name under root."""
    path = locate(text, Path(root))
    evals: dict[int, list[Eval]] = {}
    for event in read_events(path):
        if isinstance(event, Eval) and event.seed is not None and _is_sound(event):
            evals.setdefault(event.seed, []).append(event)
    return Run(path, merge(Config(), load_toml(path / "config.toml")), evals)


def locate(text: str | Path, root: Path) -> Path:
    """The folder of the run at a path, or of a name under root."""
    for path in (Path(text), root / text):
        if any(os.path.lexists(path / name) for name in ("events.jsonl", "config.toml", "checkpoints")):
            return path
    known = [found.parent.name for found in root.glob("*/events.jsonl")]
    hint = did_you_mean(Path(text).name, known) or f"; t3d runs lists those in {root}"
    raise UserError(f"there is no run at {text}{hint}")


def read_events(path: Path) -> Iterator[Event]:
    """All events of a run folder that can be read; the others are counted and left out.

    A last line that a kill cut short, or that is being written, is passed over without a word.
    """
    left_out = 0
    try:
        log = open_plain(path / "events.jsonl")
    except (OSError, Refused) as error:
        raise UserError(f"{path / 'events.jsonl'} cannot be read: {error}") from None
    with io.BufferedReader(log) as lines:  # type: ignore[type-var]
        for line in lines:
            try:
                yield from_line(line.decode())
            except CORRUPT_ERRORS:
                left_out += line.endswith(b"\n")
    if left_out:
        LOG.warning("%s", left_out_in_words(left_out, path / "events.jsonl"))


def _is_sound(event: Eval) -> bool:
    """Whether its figures can be compared and drawn: a file may say anything, and NaN is written as null."""
    counts, figures = (event.step, event.seed, event.updates), (event.mean_return, event.std_return, event.time)
    return all(type(one) is int and 0 <= one < 2**62 for one in counts) and all(
        isinstance(one, int | float) and abs(one) < LARGEST for one in figures
    )
