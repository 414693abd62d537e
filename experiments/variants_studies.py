"""What experiments/variants.py compares: studies, each of some variants on some tasks."""

from __future__ import annotations

from typing import Any, NamedTuple

FOUR_TASKS = ["HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Ant-v5"]
FIVE_TASKS = [*FOUR_TASKS, "Humanoid-v5"]


def networks(kind: str, hidden: list[int]) -> dict[str, Any]:
    return {"td3": {"actor_network": kind, "critic_network": kind, "actor_hidden": hidden, "critic_hidden": hidden}}


CHANGES: dict[str, dict[str, Any]] = {  # one at a time
    "default": {},
    "min-of-5": {"td3": {"critics": 5}},
    "mean-of-2": {"td3": {"aggregate": "mean"}},
    "truncated": {"td3": {"critics": 5, "aggregate": "truncated", "drop_highest": 2, "actor_objective": "mean"}},
    "n-step-3": {"replay": {"n_step": 3}},
    "lap": {"replay": {"sampling": "lap"}, "td3": {"critic_loss": "huber"}},
    "layer-norm": networks("layer_norm", [256, 256]),
    "residual": networks("residual", [128, 128]),
    "normalised-observations": {"normalise_observations": True},
    "scaled-rewards": {"scale_rewards": True},
    "penalty": {"td3": {"pre_activation_penalty": 1e-3}},
    "categorical": {"td3": {"critic_loss": "categorical"}, "scale_rewards": True},
    "clipped-gradients": {"td3": {"max_grad_norm": 1.0}},
}


FAST_CRITICS: dict[str, Any] = {"td3": {"critic_lr": 1e-3}, "random_steps": 10_000}


def combined(*names: str) -> dict[str, Any]:
    """Returns the settings of several changes at once."""
    settings: dict[str, Any] = {}
    changes = {**CHANGES, "fast-critics": FAST_CRITICS}
    for key, value in [item for name in names for item in changes[name].items()]:
        settings[key] = {**settings.get(key, {}), **value} if isinstance(value, dict) else value
    return settings


FINALISTS = {  # what the screen and the sweep in docs/lab/learning.md found, and fewer random steps
    "fast-critics": combined("fast-critics"),
    "fast-critics-normalised": combined("fast-critics", "normalised-observations", "layer-norm"),
    "fast-critics-truncated": combined("fast-critics", "normalised-observations", "layer-norm", "truncated"),
}


TD7: dict[str, Any] = {"algo": "td7"}
PLUS: dict[str, Any] = {"preset": "plus"}
CATEGORICAL: dict[str, Any] = {"critic_loss": "categorical"}
PENALTY: dict[str, Any] = {"pre_activation_penalty": 1e-3}
THREE: dict[str, Any] = {**PLUS, "replay": {"n_step": 3}, "scale_rewards": True}
STRONG = {  # candidates, one change each to TD7, and three of plus: docs/lab/strong.md
    "td7": TD7,
    "td7-n-step-3": {**TD7, "replay": {"n_step": 3}},
    "td7-early": {**TD7, "random_steps": 10_000},
    "td7-pink": {**TD7, "noise": {"kind": "pink"}},
    "td7-fast-critics": {**TD7, "td7": {"critic_lr": 1e-3}},
    "td7-wide-critics": {**TD7, "td7": {"critic_hidden": [512, 512]}},
    "td7-normalised": {**TD7, "normalise_observations": True},
    "td7-two-updates": {**TD7, "updates_per_step": 2.0},
    "plus-n-step-3": {**PLUS, "replay": {"n_step": 3}},
    "plus-all-three": {**THREE, "td3": CATEGORICAL},
    "plus-all-three-penalty": {**THREE, "td3": {**CATEGORICAL, **PENALTY}},
}


# Chosen after tries on a CPU with images of 32 pixels: docs/lab/learning.md
PENDULUM_FROM_PIXELS: dict[str, Any] = {
    "preset": "pixels",
    "env": {"pixels": 84},
    "random_steps": 1_000,
    "updates_per_step": 1.0,
    "scale_rewards": True,
    "td3": {"actor_lr": 1e-3, "critic_lr": 1e-3, "gamma": 0.98, "pre_activation_penalty": 1e-3},
    "noise": {"kind": "pink", "exploration_noise": 0.3, "final_noise": 0.0, "decay_steps": 0},
}


class Study(NamedTuple):
    """Settings by the name of the variant, all compared with the first."""

    tasks: list[str]
    variants: dict[str, dict[str, Any]]
    steps: int = 100_000
    seeds: int = 5
    first_seed: int = 0
    evaluations: int = 10  # of a training, besides the one before it
    tf32: bool = False
    also_from: str = ""  # another study, which has trained variants of the same names as this one would
    beside_paper: bool = False  # shows the authors' curves, too


STUDIES = {
    "architectures": Study(
        ["HalfCheetah-v5"],
        {"mlp": {}, "layer_norm": networks("layer_norm", [256, 256]), "residual": networks("residual", [128, 128])},
    ),
    "engines": Study(
        ["HalfCheetah-v5"],
        {engine: {"engine": engine} for engine in ("eager", "fused", "capture")},  # fused needs a CPU, capture a GPU
        steps=50_000,
        seeds=3,
    ),
    "n-step": Study(["HalfCheetah-v5", "Hopper-v5"], {"1-step": {}, "3-step": {"replay": {"n_step": 3}}}),
    "screen": Study(["HalfCheetah-v5", "Walker2d-v5"], CHANGES),
    "finalists": Study(
        FOUR_TASKS, {"default": {}, **FINALISTS}, 300_000, evaluations=6, tf32=True, also_from="presets"
    ),
    "plus": Study(
        FOUR_TASKS,
        {"plus": {"preset": "plus"}},
        1_000_000,
        seeds=10,
        evaluations=20,
        tf32=True,
        beside_paper=True,
    ),
    "presets": Study(  # both with one environment a seed and the same starts of evaluations
        FOUR_TASKS,
        {"default": {}, "plus": {"preset": "plus"}},
        300_000,
        seeds=10,
        evaluations=6,
        tf32=True,
        beside_paper=True,
    ),
    "family": Study(
        FIVE_TASKS,
        {"default": {}, "plus": PLUS, "td7": TD7},
        300_000,
        evaluations=6,
        tf32=True,
    ),
    "family-long": Study(["HalfCheetah-v5"], {"td7": TD7}, 1_000_000, evaluations=20, tf32=True),
    "strong-choice": Study(
        ["HalfCheetah-v5", "Hopper-v5", "Humanoid-v5"],
        STRONG,
        150_000,
        seeds=3,
        first_seed=100,
        evaluations=6,
        tf32=True,
    ),
    "pixels-pendulum": Study(  # an action is repeated twice, as in the preset pixels
        ["Pendulum-v1"],
        {"states": {"preset": "quick", "env": {"action_repeat": 2}}, "pixels": PENDULUM_FROM_PIXELS},
        steps=10_000,
        seeds=3,
    ),
    "pixels-cartpole": Study(  # 200,000 frames
        ["dm:cartpole-swingup"],
        {"pixels": {"preset": "pixels", "env": {"pixels": 84}, "eval": {"episodes": 5}}},
        steps=100_000,
        seeds=3,
    ),
}
