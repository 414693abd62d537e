"""Stable-Baselines3's TD3, learning with T3D's loop, replay and engines: `from t3d.sb3 import TD3`.

model.py      the class: what it inherits from theirs, and what it does itself
settings.py   its arguments as our configuration, and what is refused
collecting.py their environments, statistics and evaluations, as the loop knows collectors and evaluators
replay.py     our replay in the shape of theirs
networks.py   their modules in our memory
files.py      what is saved: JSON and safetensors; reading their zips
"""

from t3d.errors import check_installed

check_installed("t3d.sb3", ["stable_baselines3"], "sb3")

from t3d.sb3.model import TD3  # noqa: E402 (imports stable_baselines3)

__all__ = ["TD3"]
