"""Return against smoothness: `python experiments/smooth.py`, the section "Smooth actions" of docs/ship.md.

Trains a task, by default HalfCheetah-v5, with several limits on how much actions change per step
(env.max_action_change), several seeds in one run each, and plays the last policy of each seed on fresh episodes. The
policies without a limit are also played behind a limit that they were not trained with. Each training leaves a JSON
file under docs/smooth; one that has such a file with as many steps and seeds is skipped, and one that was stopped
continues from its checkpoint: repeating the command finishes the study. `--draw` trains nothing.

    python experiments/smooth.py --actors local:15 --tf32          # a machine with a GPU and 16 cores: half an hour
    python experiments/smooth.py --task Pendulum-v1 --preset quick --steps 10000 --random-steps 1000   # a CPU, minutes
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import psutil
from numpy.typing import NDArray

import t3d
from t3d.events import Eval
from t3d.insight.plots import COLOURS, drawing, save
from t3d.policy.acting import LoadedPolicy
from t3d.seeds import derive
from t3d.store.folder import versions
from t3d.types import sample_std

LIMITS = [0, 0.5, 0.2, 0.1, 0.05]
RESULTS, PAGE, PICTURE = Path("docs/smooth"), Path("docs/ship.md"), Path("docs/img/smooth.png")
MARKS = ("<!-- smooth: written by experiments/smooth.py -->\n", "<!-- end of smooth -->")
Actions = NDArray[np.float64]


class Played(NamedTuple):
    """What one policy does: means over episodes, and the largest change in any of them."""

    mean_return: float
    change: float  # mean absolute change of an action per step, as a share of its range
    largest_change: float
    frequency: float  # mean frequency of the actions, weighted by amplitude, as CAPS (Mysore et al., 2021) defines it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="HalfCheetah-v5", metavar="ENV")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--limits", type=float, nargs="+", default=LIMITS, help="0: none")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--random-steps", type=int, default=25_000)
    parser.add_argument("--episodes", type=int, default=10, help="that each policy plays")
    parser.add_argument("--actors", default="inline")
    parser.add_argument("--tf32", action="store_true", help="faster on a GPU, less precise")
    parser.add_argument("--runs", type=Path, default=Path("runs/smooth"), help="folder of the runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--draw", action="store_true", help="train nothing: write the table and draw the picture")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    for limit in [] if args.draw else args.limits:
        file = args.results / f"{args.task}-{limit:g}.json"
        if is_finished(file, args):
            print(f"{file} has a result already")
            continue
        train(limit, args)
        file.write_text(json.dumps(result(limit, args), indent=1) + "\n")
    found = [json.loads(file.read_text()) for file in args.results.glob(f"{args.task}-*.json")]
    longest = max(one["steps"] for one in found)
    write(sorted((one for one in found if one["steps"] == longest), key=lambda one: -(one["limit"] or 2)))


def is_finished(file: Path, args: argparse.Namespace) -> bool:
    known = json.loads(file.read_text()) if file.exists() else {}
    return (known.get("steps"), known.get("seeds")) == (args.steps, args.seeds)


def folder(limit: float, args: argparse.Namespace) -> Path:
    return Path(args.runs, f"{args.task}-{limit:g}-{args.seeds}x{args.steps}")


def train(limit: float, args: argparse.Namespace) -> None:
    """Trains, or continues, or does nothing if the run is complete."""
    changes = {
        "env": {"id": args.task, "max_action_change": limit},
        "seeds": list(range(args.seeds)),
        "total_steps": args.steps,
        "random_steps": args.random_steps,
        "actors": args.actors,
        "tf32": args.tf32,
        "eval": {"every_steps": max(1, args.steps // 4)},
        "log": {"every_steps": max(1, args.steps // 100), "diagnose_every_steps": 0},
        "checkpoint": {"every_steps": max(1, args.steps // 5)},
        "run": {"root": str(args.runs), "name": folder(limit, args).name},
    }
    cfg, started = t3d.merge(t3d.preset(args.preset), changes), time.monotonic()
    path = folder(limit, args)
    try:
        for event in t3d.resume(path, cfg=cfg) if path.is_dir() else t3d.train(cfg):
            if isinstance(event, Eval):
                seconds = time.monotonic() - started
                print(f"limit {limit:g} {event.step:>9,} seed {event.seed}: {event.mean_return:8.1f}  {seconds:.0f} s")
    except t3d.UserError as error:
        if "already finished" not in str(error):
            raise


def result(limit: float, args: argparse.Namespace) -> dict[str, Any]:
    """What the last policy of each seed does; without a limit, also behind each of the others."""
    stems = [folder(limit, args) / "last" / f"seed-{seed}" for seed in range(args.seeds)]
    policies = [t3d.load_policy(stem) for stem in stems]
    behind = [] if limit else sorted({*LIMITS, *args.limits} - {0})
    return {
        "task": args.task,
        "preset": args.preset,
        "limit": limit,
        "steps": args.steps,
        "seeds": args.seeds,
        "episodes": args.episodes,
        "policies": [play(policy, args.episodes)._asdict() for policy in policies],
        "limited_afterwards": {
            f"{one:g}": [play(policy, args.episodes, one)._asdict() for policy in policies] for one in behind
        },
        "random_steps": args.random_steps,
        "actors": args.actors,
        "tf32": args.tf32,
        "arguments": sys.argv[1:],
        "machine": f"{gpu_name()}, {psutil.cpu_count()} cores ({platform.machine()})",
        "versions": versions(),
    }


def play(policy: LoadedPolicy, episodes: int, limit: float = 1.0) -> Played:
    """Plays fresh episodes, the same for every policy; `limit` clips actions whose policy knows nothing of it."""
    env, controller, found = gym.make(str(policy.about["env"])), policy.controller(), []
    low, high = policy.spec.action_low, policy.spec.action_high
    for episode in range(episodes):
        observation, _ = env.reset(seed=derive(0, "test", episode))
        controller.reset()
        applied, rewards, over = [policy.initial_action.astype(np.float64)], [], False
        while not over:
            change = limit * (high - low)
            action = np.clip(controller(observation), applied[-1] - change, applied[-1] + change)
            observation, reward, terminated, truncated, _ = env.step(action.astype(policy.spec.action_dtype))
            applied.append(action)
            rewards.append(float(reward))
            over = terminated or truncated
        actions = np.array(applied[1:])
        changes = np.abs(np.diff(actions, axis=0)) / (high - low)
        found.append((sum(rewards), changes.mean(), changes.max(), frequency(2 * (actions - low) / (high - low) - 1)))
    env.close()
    mean_return, change, _, frequencies = map(float, np.mean(found, axis=0))
    return Played(mean_return, change, float(max(largest for _, _, largest, _ in found)), frequencies)


def frequency(actions: Actions) -> float:
    """CAPS's smoothness, 2 / (n f_s) times the sum of amplitude times frequency, over actions (T, size) in [-1, 1]."""
    amplitudes = 2 * np.abs(np.fft.rfft(actions, axis=0)) / len(actions)
    frequencies = np.fft.rfftfreq(len(actions))  # as a share of the sampling frequency f_s
    return float((2 * (amplitudes * frequencies[:, None]).mean(axis=0)).mean())


def gpu_name() -> str:
    import torch  # noqa: PLC0415 (not needed for --draw)

    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


def figures(policies: list[dict[str, float]], name: str) -> NDArray[np.float64]:
    return np.array([one[name] for one in policies])


def in_words(policies: list[dict[str, float]]) -> str:
    returns = figures(policies, "mean_return")
    return f"{returns.mean():,.0f} ± {sample_std(returns):,.0f}"


def cells(one: dict[str, Any], afterwards: dict[str, Any]) -> list[str]:
    """A line of the table."""
    mine, other = one["policies"], afterwards.get(f"{one['limit']:g}")
    return [
        f"{one['limit']:g}" if one["limit"] else "none",
        in_words(mine),
        f"{figures(mine, 'change').mean():.1%}",
        f"{figures(mine, 'largest_change').max():.1%}",
        f"{1000 * figures(mine, 'frequency').mean():.2f}",
        in_words(other) if other else "",
    ]


def commands(found: list[dict[str, Any]]) -> list[str]:
    """The commands that made the results, each once; results of earlier versions of this file do not say."""
    known = [one["arguments"] for one in found if "arguments" in one]
    typed = dict.fromkeys(shlex.join(["python", "experiments/smooth.py", *arguments]) for arguments in known)
    return ["", f"Made by {' and '.join(f'`{command}`' for command in typed)}."] if typed else []


def write(found: list[dict[str, Any]]) -> None:
    """Writes the table into the page, and draws the picture."""
    afterwards: dict[str, Any] = next((one["limited_afterwards"] for one in found if not one["limit"]), {})
    lines = [
        "| `env.max_action_change` | return | mean change per step | largest change | CAPS's Sm, × 1000 "
        "| return, limited only afterwards |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells(one, afterwards))} |" for one in found),
    ]
    one = found[0]
    lines += [
        "",
        f"{one['task']}, preset `{one['preset']}`, {one['seeds']} seeds, {one['steps']:,} steps of which "
        f"{one['random_steps']:,} random; the last policy of each seed on {one['episodes']} fresh episodes, mean ± "
        f"standard deviation over seeds. {one['machine']}; "
        + ", ".join(f"{name} {text}" for name, text in one["versions"].items())
        + ".",
        *commands(found),
        "",
        "![Return against smoothness](img/smooth.png)",
    ]
    table = "\n".join(lines)
    print(table)
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}\n{table}\n\n{MARKS[1]}{rest.split(MARKS[1])[1]}", encoding="utf-8")
    draw(found, afterwards)


def draw(found: list[dict[str, Any]], afterwards: dict[str, Any]) -> None:
    """Return against smoothness: a small dot for each seed, a large one for their mean."""
    groups = [(f"limit {one['limit']:g}" if one["limit"] else "no limit", one["policies"]) for one in found]
    with drawing() as plt:
        figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
        for place, (title, policies) in enumerate(groups):
            _dots(axes, policies, COLOURS[place % len(COLOURS)], title, "o")
            other = afterwards.get(title.removeprefix("limit "))
            if other:
                _dots(axes, other, COLOURS[place % len(COLOURS)], "", "x")
        axes.plot([], [], "x", color="grey", label="limited only afterwards")
        axes.set_xlabel("mean change of an action per step, % of its range (left: smoother)")
        axes.set_ylabel("return")
        axes.set_title(f"{found[0]['task']}, {found[0]['steps']:,} steps, {found[0]['seeds']} seeds")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
        save(figure, PICTURE)
        plt.close(figure)


def _dots(axes: Any, policies: list[dict[str, float]], colour: str, title: str, marker: str) -> None:
    x, y = 100 * figures(policies, "change"), figures(policies, "mean_return")
    axes.plot(x, y, marker, color=colour, alpha=0.4, markersize=4)
    axes.plot(x.mean(), y.mean(), marker, color=colour, markersize=9, label=title or None)


if __name__ == "__main__":
    main()
