"""Settings: the dataclasses, merging, TOML files and presets."""

from t3d.config.algorithm import ReplayConfig, RuleConfig, TD3Config, TD7Config
from t3d.config.merging import diff, dotted, flat, load_config, load_toml, merge, merge_named, plain, to_dict, to_toml
from t3d.config.settings import Config, EnvConfig, NoiseConfig, RunConfig
from t3d.config.sweeps import Member

__all__ = ["Config", "EnvConfig", "Member", "NoiseConfig", "ReplayConfig", "RuleConfig", "RunConfig", "TD3Config"]
__all__ += [
    "TD7Config",
    "diff",
    "dotted",
    "flat",
    "load_config",
    "load_toml",
    "merge",
    "merge_named",
    "plain",
    "to_dict",
    "to_toml",
]
