"""Settings: the dataclasses, merging, TOML files and presets."""

from t3d.config.algorithm import ReplayConfig, TD3Config
from t3d.config.merging import diff, dotted, flat, merge, plain, to_dict
from t3d.config.settings import (
    MOST_SEEDS,
    CheckpointConfig,
    Config,
    EnvConfig,
    EvalConfig,
    LogConfig,
    NoiseConfig,
    RunConfig,
)
from t3d.config.sweeps import Member
from t3d.config.toml import load_config, load_toml, to_toml

__all__ = [
    "MOST_SEEDS",
    "CheckpointConfig",
    "Config",
    "EnvConfig",
    "EvalConfig",
    "LogConfig",
    "Member",
    "NoiseConfig",
    "ReplayConfig",
    "RunConfig",
    "TD3Config",
    "diff",
    "dotted",
    "flat",
    "load_config",
    "load_toml",
    "merge",
    "plain",
    "to_dict",
    "to_toml",
]
