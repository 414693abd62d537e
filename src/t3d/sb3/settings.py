"""The arguments of Stable-Baselines3's TD3 as a configuration of ours, and what only theirs can do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from stable_baselines3.common.torch_layers import CombinedExtractor, FlattenExtractor, NatureCNN, get_actor_critic_arch
from stable_baselines3.td3.policies import CnnPolicy, MlpPolicy, MultiInputPolicy

from t3d.config import Config, merge
from t3d.errors import UserError
from t3d.policy.spec import Spec
from t3d.run.stepped import ENDLESS
from t3d.world.spec import spec_of

POLICIES = {"MlpPolicy": MlpPolicy, "CnnPolicy": CnnPolicy, "MultiInputPolicy": MultiInputPolicy}
EXTRACTORS = {kind.__name__: kind for kind in (FlattenExtractor, NatureCNN, CombinedExtractor)}
ACTIVATIONS = {"ReLU": "relu", "ELU": "elu", "SiLU": "silu", "Tanh": "tanh"}  # GELU is another function there
OPTIMISERS = {"Adam": torch.optim.Adam, "AdamW": torch.optim.AdamW}
BUFFERS = (ReplayBuffer, DictReplayBuffer, NStepReplayBuffer)
FEATURES = ("features_dim", "cnn_output_dim")  # of their extractors for images
DECAY_OF_ADAMW = 0.01  # where none is given, as in torch
REPORT_EVERY = 1_000  # steps


class UnknownSpace(UserError, AssertionError):
    """A space that nothing can be learned in; an AssertionError is what theirs raises, and what scripts expect."""


def only_theirs(what: str) -> UserError:
    """Says who can do what this cannot."""
    return UserError(f"{what} is for stable_baselines3.TD3 alone; import that one for this script")


def spec_for(observation_space: Any, action_space: Any) -> Spec:
    """What an environment with these spaces observes and does."""
    if isinstance(observation_space, spaces.Dict) and not observation_space.spaces:
        raise UnknownSpace("the observation space is empty")
    try:
        return spec_of(SimpleNamespace(observation_space=observation_space, action_space=action_space))
    except UserError as error:
        raise UnknownSpace(str(error)) from None


def networks_of(policy_kwargs: dict[str, Any], spec: Spec) -> dict[str, Any]:
    """The settings of networks and their optimiser, as fields of TD3Config; raises for what is theirs alone."""
    given = dict(policy_kwargs)
    extractor, features = (
        given.pop("features_extractor_class", None),
        given.pop("features_extractor_kwargs", None) or {},
    )
    if extractor not in (None, *EXTRACTORS.values()):
        raise only_theirs(f"features_extractor_class={extractor.__name__}")
    given.pop("share_features_extractor", None)  # ours share it always
    if not given.pop("normalize_images", True) and spec.images:
        raise only_theirs("normalize_images=False with images")
    default = [256, 256] if spec.images else [400, 300]
    arch = given.pop("net_arch", None)
    actor, critic = get_actor_critic_arch(default if arch is None else arch)
    activation = given.pop("activation_fn", torch.nn.ReLU).__name__
    if activation not in ACTIVATIONS:
        raise only_theirs(f"activation_fn={activation}")
    optimiser, of_optimiser = given.pop("optimizer_class", torch.optim.Adam), given.pop("optimizer_kwargs", None) or {}
    if optimiser not in OPTIMISERS.values():
        raise only_theirs(f"optimizer_class={optimiser.__name__}")
    is_adamw = optimiser is torch.optim.AdamW
    decay = of_optimiser.get("weight_decay", DECAY_OF_ADAMW if is_adamw else 0.0)
    if (decay and not is_adamw) or of_optimiser.keys() - {"weight_decay"}:
        raise only_theirs(f"optimizer_kwargs={of_optimiser} with {optimiser.__name__}")
    critics = given.pop("n_critics", 2)
    if given:
        raise only_theirs(f"policy_kwargs with {', '.join(given)}")
    networks = {"critics": critics, "actor_hidden": tuple(actor), "critic_hidden": tuple(critic), "weight_decay": decay}
    networks |= {f"{owner}_activation": ACTIVATIONS[activation] for owner in ("actor", "critic")}
    size = next((features[name] for name in FEATURES if name in features), None)
    return {**networks, "encoder_features": size} if size and spec.images else networks


def config_of(model: Any, spec: Spec, seed: int, env_name: str) -> Config:
    """The configuration of a run with a model's arguments; raises for what is theirs alone."""
    if model.policy_class not in POLICIES.values():
        raise only_theirs(f"the policy {model.policy_class.__name__}")
    if model.replay_buffer_class not in (None, *BUFFERS):
        raise only_theirs(f"replay_buffer_class={model.replay_buffer_class.__name__}")
    rate, steps = float(model.lr_schedule(1)), model.train_freq.frequency * model.n_envs
    shared = ("gamma", "tau", "batch_size", "policy_delay", "target_noise_clip")
    td3 = {name: getattr(model, name) for name in shared} | networks_of(model.policy_kwargs, spec)
    td3 |= {"target_noise": model.target_policy_noise, "actor_lr": rate, "critic_lr": rate}
    return merge(
        Config(),
        {
            "seeds": [seed],
            "total_steps": ENDLESS,
            "random_steps": model.learning_starts,
            "updates_per_step": 1.0 if model.gradient_steps < 0 else model.gradient_steps / steps,
            "device": model.device.type,
            "threads": torch.get_num_threads(),
            "env": {"name": env_name, "num_envs": model.n_envs},
            "td3": td3,
            "replay": {"capacity": max(model.buffer_size // model.n_envs, 1) * model.n_envs, "n_step": model.n_steps},
            "log": {"every_steps": REPORT_EVERY, "diagnose_every_steps": 0},
            "eval": {"every_steps": ENDLESS},
            "checkpoint": {"every_steps": ENDLESS},
        },
    )
