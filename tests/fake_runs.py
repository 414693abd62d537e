"""Run folders that were never trained: a configuration and the events that a test wants."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from t3d.config import Config, merge, to_dict, to_toml
from t3d.events import Diagnosed, End, EpisodeEnd, Eval, Event, SeedStopped, Start, TraceSummary, Update, to_line
from t3d.store.metrics import StoredEvaluation
from t3d.store.reader import Run, open_run

EVERY = 1000  # steps between evaluations
EPISODES_PER_ROUND, SELDOM = 8, 10  # of a long run: episodes of a member, and rounds between two evaluations
TRACE = ("pi2", "eps", "a2", "q2", "v2", "y", "q", "td", "loss", "weight", "pi", "q_pi", "actor_loss")


def write_run(
    path: Path,
    returns: Mapping[int, Sequence[float]],
    *,
    env: str = "Pendulum-v1",
    metrics: Sequence[str] = (),
    events: Iterable[Event] = (),
    diverged: Iterable[int] = (),
    after: int = 1,
    every: int = EVERY,
    **settings: Any,
) -> Path:
    """A run with these returns of each seed, or of each member in their order; the diverged ones stopped soon after."""
    seeds = settings.pop("seeds", [*returns])
    environment = {"id": env, "metrics": metrics}
    cfg = merge(Config(), {"env": environment, "seeds": seeds, "run": {"name": path.name}, **settings})
    lines: list[Event] = [session(path, cfg)]
    lines += [
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


def stored(run: Run, path: Path) -> Run:
    """A run of these evaluations and divergences, in a folder."""
    path.mkdir(exist_ok=True)
    (path / "config.toml").write_text(to_toml(run.cfg), encoding="utf-8")
    numbers = {member: number for number, member in enumerate(run.cfg.members)}
    events: list[Event] = [session(path, run.cfg)]
    for member, evals in run.evals.items():
        for kept in evals:
            event = evaluation(numbers[member], member.seed, kept.step, kept.mean_return)
            events.append(replace(event, **kept._asdict()))
    for member, stop in run.stopped.items():
        events.append(replace(stop, member=numbers[member], seed=member.seed))
    (path / "events.jsonl").write_text("".join(f"{to_line(event)}\n" for event in events), "utf-8")
    return open_run(path)


def kept(event: Eval) -> StoredEvaluation:
    """What is read of an evaluation."""
    return StoredEvaluation(event.step, event.time, event.updates, event.mean_return, event.std_return, event.best)


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


def write_long_run(
    path: Path, events: int, *, seeds: Sequence[int] = (0, 1), ended: bool = True, **settings: Any
) -> Path:
    """A run with about this many events of all kinds, in the shares of a run with short episodes; written quickly."""
    often, seldom = _round(seeds, seldom=False), _round(seeds, seldom=True)
    rounds = max(1, events * SELDOM // (often.count("\n") * SELDOM + seldom.count("\n")))
    about = {"env": {"id": "Pendulum-v1"}, "seeds": [*seeds], "total_steps": rounds * EVERY, "random_steps": 10}
    cfg = merge(Config(), {**about, "run": {"name": path.name}, **settings})
    (path / "best").mkdir(parents=True)
    (path / "config.toml").write_text(to_toml(cfg), encoding="utf-8")
    for seed in seeds:
        (path / "best" / f"seed-{seed}.json").write_text('{"mean_return": 1.0}')
    start = to_line(session(path, cfg)) + "\n"
    with (path / "events.jsonl").open("w", encoding="utf-8") as file:
        file.write(start)
        for place in range(1, rounds + 1):
            lines = often if place % SELDOM else often + seldom
            file.write(lines.replace("111111", str(place * EVERY)).replace("222222.5", f"{math.sin(place / 50):.6f}"))
        if ended:
            file.write(to_line(End(step=rounds * EVERY, reason="finished", updates=rounds, seconds=60.0)) + "\n")
    (path / "journal.jsonl").write_text(start, encoding="utf-8")
    return path


def session(path: Path, cfg: Config, pid: int = 0) -> Start:
    """What a process says of itself when its run starts."""
    about: dict[str, Any] = {"versions": {"t3d": "0", "cpu": "none"}, "parameters": 10, "replay_bytes": 1000}
    return Start(step=0, time=1e9, folder=str(path), config=to_dict(cfg), pid=pid, host=platform.node(), **about)


def diagnosis(where: dict[str, Any], bias: float = 0.0) -> Diagnosed:
    """A closer look at a healthy member."""
    each = dict.fromkeys(("actor", "critic-1", "critic-2"), 0.25)
    figures: dict[str, Any] = {"q_predicted": 1.0, "q_return": 1.0, "q_bias": bias, "q_rows": 10, "disagreement": 0.1}
    lists: dict[str, Any] = {
        "td_quantiles": [-1.0, -0.5, 0.0, 0.5, 1.0],
        "sampled_age": [1.0, 2.0, 3.0],
        "action_counts": [1] * 20,
    }
    rest: dict[str, Any] = {
        "reward_counts": [1] * 20,
        "reward_range": [-1.0, 1.0],
        "largest_reward": 1.0,
        "constant_observations": [],
    }
    networks: dict[str, Any] = {"dead_units": each, "gradient_norms": each, "weight_norms": each}
    shares: dict[str, Any] = {"saturated": 0.0, "stuck_actions": 0.0, "acting_share": 0.5, "seconds": 0.01}
    return Diagnosed(**where, updates=1, **figures, **lists, **rest, **networks, **shares)


def _round(seeds: Sequence[int], *, seldom: bool) -> str:
    """The lines of one round of all members, with 111111 for the step and 222222.5 for what varies."""
    found: list[str] = []
    for member, seed in enumerate(seeds):
        where: dict[str, Any] = {"step": 111111, "member": member, "seed": seed, "time": 1000111111.25}
        if seldom:
            found.append(to_line(replace(evaluation(member, seed, 111111, 222222.5), **where)))
            found.append(to_line(diagnosis(where, 222222.5)))
            continue
        episode = EpisodeEnd(**where, env=0, episode=1, total_reward=222222.5, length=200, terminated=False)
        tensors = {name: {"shape": [256, 3], "mean": 222222.5, "std": 0.5, "first": [0.1, 0.2, 0.3]} for name in TRACE}
        found += [to_line(episode)] * EPISODES_PER_ROUND
        found.append(to_line(replace(update(member, seed, 111111, 222222.5), **where)))
        found.append(to_line(TraceSummary(**where, updates=111111, values=tensors)))
    return "".join(f"{line}\n" for line in found)
