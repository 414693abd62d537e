"""Return against smoothness: `python experiments/smooth.py`, the section "Smooth actions" of docs/lab/shipping.md.

Trains a task, by default HalfCheetah-v5, with several limits on how much actions change per step
(env.max_action_change), several seeds in one run each, and plays the last policy of each seed on fresh episodes. The
policies without a limit are also played behind a limit that they were not trained with. Each training leaves a JSON
file under docs/lab/smooth; one that has such a file with as many steps and seeds is skipped, and one that was stopped
continues from its checkpoint: repeating the command finishes the study. `--draw` trains nothing.

    python experiments/smooth.py --actors local:15 --tf32          # a machine with a GPU and 16 cores: half an hour
    python experiments/smooth.py --task Pendulum-v1 --preset quick --steps 10000 --random-steps 1000   # a CPU, minutes
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from common import drawing, machine, train_or_resume, write_into, write_results
from numpy.typing import NDArray

import t3d
from t3d.events import Eval
from t3d.insight.drawing import COLOURS
from t3d.policy.acting import LoadedPolicy
from t3d.seeds import derive
from t3d.types import sample_std

LIMITS = [0, 0.5, 0.2, 0.1, 0.05]
RESULTS, PAGE, PICTURE = Path("docs/lab/smooth"), Path("docs/lab/shipping.md"), Path("docs/img/smooth.png")
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
        write_results(file, **result(limit, args))
    results = [json.loads(file.read_text()) for file in args.results.glob(f"{args.task}-*.json")]
    longest = [result for result in results if result["steps"] == max(result["steps"] for result in results)]
    write(sorted(longest, key=lambda result: -(result["limit"] or 2)))


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
    try:
        for event in train_or_resume(cfg):
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
            f"{other:g}": [play(policy, args.episodes, other)._asdict() for policy in policies] for other in behind
        },
        "random_steps": args.random_steps,
        "actors": args.actors,
        "tf32": args.tf32,
        "arguments": sys.argv[1:],
        "machine": machine(),
    }


def play(policy: LoadedPolicy, episodes: int, limit: float = 1.0) -> Played:
    """Plays fresh episodes, the same for every policy; `limit` clips actions whose policy knows nothing of it."""
    env, controller, played = gym.make(str(policy.about["env"])), policy.controller(), []
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
        played.append((sum(rewards), changes.mean(), changes.max(), frequency(2 * (actions - low) / (high - low) - 1)))
    env.close()
    mean_return, change, _, frequencies = map(float, np.mean(played, axis=0))
    return Played(mean_return, change, float(np.max(played, axis=0)[2]), frequencies)


def frequency(actions: Actions) -> float:
    """CAPS's smoothness, 2 / (n f_s) times the sum of amplitude times frequency, over actions (T, size) in [-1, 1]."""
    amplitudes = 2 * np.abs(np.fft.rfft(actions, axis=0)) / len(actions)
    frequencies = np.fft.rfftfreq(len(actions))  # as a share of the sampling frequency f_s
    return float((2 * (amplitudes * frequencies[:, None]).mean(axis=0)).mean())


def column(policies: list[dict[str, float]], name: str) -> NDArray[np.float64]:
    return np.array([policy[name] for policy in policies])


def return_of(policies: list[dict[str, float]]) -> str:
    returns = column(policies, "mean_return")
    return f"{returns.mean():,.0f} ± {sample_std(returns):,.0f}"


def cells(result: dict[str, Any], afterwards: dict[str, Any]) -> list[str]:
    """A line of the table."""
    policies, limited = result["policies"], afterwards.get(f"{result['limit']:g}")
    return [
        f"{result['limit']:g}" if result["limit"] else "none",
        return_of(policies),
        f"{column(policies, 'change').mean():.1%}",
        f"{column(policies, 'largest_change').max():.1%}",
        f"{1000 * column(policies, 'frequency').mean():.2f}",
        return_of(limited) if limited else "",
    ]


def commands(results: list[dict[str, Any]]) -> list[str]:
    """The commands that made the results, each once; results of earlier versions of this file do not say."""
    known = [result["arguments"] for result in results if "arguments" in result]
    typed = dict.fromkeys(shlex.join(["python", "experiments/smooth.py", *arguments]) for arguments in known)
    return ["", f"Made by {' and '.join(f'`{command}`' for command in typed)}."] if typed else []


def write(results: list[dict[str, Any]]) -> None:
    """Writes the table into the page, and draws the picture."""
    unlimited = [result for result in results if not result["limit"]]
    afterwards: dict[str, Any] = unlimited[0]["limited_afterwards"] if unlimited else {}
    about = results[0]
    lines = [
        "| `env.max_action_change` | return | mean change per step | largest change | CAPS's Sm, × 1000 "
        "| return, limited only afterwards |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells(result, afterwards))} |" for result in results),
        "",
        f"{about['task']}, preset `{about['preset']}`, {about['seeds']} seeds, {about['steps']:,} steps of which "
        f"{about['random_steps']:,} random; the last policy of each seed on {about['episodes']} fresh episodes, mean ± "
        f"standard deviation over seeds. {about['machine']}; "
        + ", ".join(f"{name} {text}" for name, text in about["versions"].items())
        + ".",
        *commands(results),
        "",
        "![Return against smoothness](../img/smooth.png)",
    ]
    table = "\n".join(lines)
    print(table)
    write_into(PAGE, "smooth", "smooth.py", table)
    draw(results, afterwards)


def draw(results: list[dict[str, Any]], afterwards: dict[str, Any]) -> None:
    """Return against smoothness: a small dot for each seed, a large one for their mean."""
    about = results[0]
    with drawing(PICTURE, (7, 4.2)) as figure:
        axes = figure.subplots()
        for result, colour in zip(results, cycle(COLOURS)):
            limit = result["limit"]
            _dots(axes, result["policies"], colour, f"limit {limit:g}" if limit else "no limit", "o")
            if limited := afterwards.get(f"{limit:g}"):
                _dots(axes, limited, colour, "", "x")
        axes.plot([], [], "x", color="grey", label="limited only afterwards")
        axes.set_xlabel("mean change of an action per step, % of its range (left: smoother)")
        axes.set_ylabel("return")
        axes.set_title(f"{about['task']}, {about['steps']:,} steps, {about['seeds']} seeds")
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)


def _dots(axes: Any, policies: list[dict[str, float]], colour: str, title: str, marker: str) -> None:
    x, y = 100 * column(policies, "change"), column(policies, "mean_return")
    axes.plot(x, y, marker, color=colour, alpha=0.4, markersize=4)
    axes.plot(x.mean(), y.mean(), marker, color=colour, markersize=9, label=title or None)


if __name__ == "__main__":
    main()
