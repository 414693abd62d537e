"""Run folders that were never trained: a configuration and the events that a test wants."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from t3d.config import Config, merge, to_toml
from t3d.events import Eval, Event, SeedStopped, Update, to_line

EVERY = 1000  # steps between evaluations


def write_run(
    path: Path,
    returns: Mapping[int, Sequence[float]],
    *,
    env: str = "Pendulum-v1",
    events: Iterable[Event] = (),
    diverged: Iterable[int] = (),
    after: int = 1,
    every: int = EVERY,
    **settings: Any,
) -> Path:
    """A run with these returns of each seed, or of each member in their order; the diverged ones stopped soon after."""
    seeds = settings.pop("seeds", [*returns])
    cfg = merge(Config(), {"env": {"id": env}, "seeds": seeds, "run": {"name": path.name}, **settings})
    lines = [
        evaluation(member, cfg.member_seeds[member], place * every, value)
        for member, values in enumerate(returns.values())
        for place, value in enumerate(values)
    ]
    stops = [
        SeedStopped(step=(len(returns[seed]) - 1) * every + after, member=cfg.seeds.index(seed), seed=seed, text="NaN")
        for seed in diverged
    ]
    path.mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
    (path / "events.jsonl").write_text("".join(f"{to_line(one)}\n" for one in [*lines, *events, *stops]), "utf-8")
    return path


def evaluation(member: int, seed: int, step: int, value: float) -> Eval:
    """An evaluation that took place a minute after the one before it."""
    spread = {"std_return": 1.0, "min_return": value - 1, "max_return": value + 1, "mean_length": 200.0}
    lists: dict[str, Any] = {"returns": [value - 1, value + 1], "lengths": [200, 200], "best": False}
    where = {"step": step, "member": member, "seed": seed, "time": 1e9 + 60 * step / EVERY}
    return Eval(**where, updates=step, mean_return=value, **spread, **lists)  # type: ignore[arg-type]


def update(member: int, seed: int, step: int, q_mean: float) -> Update:
    """The losses and values of an update."""
    others = {"critic_loss": 1.0, "actor_loss": 1.0, "y_mean": 1.0, "td_abs_mean": 1.0, "steps_per_second": 1.0}
    where = {"step": step, "member": member, "seed": seed, "time": 1e9 + step}
    return Update(**where, updates=step, q_mean=q_mean, **others)  # type: ignore[arg-type]
