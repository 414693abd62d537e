"""The networks that settings describe; the user's own are imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from t3d.config.algorithm import TD3Config, TD7Config
from t3d.errors import UserError
from t3d.modules import import_named, is_own, named_or_own, where_it_failed
from t3d.policy.architectures import (
    EMBEDDING,
    KINDS,
    Architecture,
    Encoder,
    Kind,
    beside,
    beside_layout,
    embedding_kind,
)
from t3d.policy.spec import Spec


def architecture(name: str, sizes: Sequence[int], activation: str, encoder: Encoder | None = None) -> Architecture:
    """Returns an architecture by the name of its kind; one of the user's own is imported."""
    network = Architecture(name, named_or_own(name, KINDS, Kind, "network"), tuple(sizes), activation, encoder)
    try:
        network.size  # noqa: B018 (its layout may raise)
    except Exception as error:
        why = str(error) if isinstance(error, ValueError) else where_it_failed(error)
        raise UserError(f"there is no network {name} with layers {list(sizes)}: {why}") from error
    return network


def sent_architecture(fields: dict[str, Any]) -> Architecture:
    """Reads an architecture that another process of the run has sent; one of the user's own is imported."""
    return Architecture.from_dict(fields, own_network(fields["name"]))


def own_network(name: str) -> Kind | None:
    """Imports a network by its name if it is the user's own, as load_policy wants it."""
    return import_named(name, Kind, "network") if is_own(name) else None


def actor_architecture(spec: Spec, cfg: TD3Config) -> Architecture:
    """The architecture of an actor, before the tanh of its output; with images it begins with their encoder."""
    sizes = (spec.observation_size, *cfg.actor_hidden, spec.action_size)
    return architecture(cfg.actor_network, sizes, cfg.actor_activation, encoder_of(spec, cfg))


def critic_architecture(spec: Spec, cfg: TD3Config) -> Architecture:
    """The architecture of a critic, with an output for each value of a categorical one; actors encode its images."""
    outputs = cfg.value_bins if cfg.critic_loss == "categorical" else 1
    sizes = (spec.observation_size + spec.action_size, *cfg.critic_hidden, outputs)
    network = architecture(cfg.critic_network, sizes, cfg.critic_activation, encoder_of(spec, cfg))
    return network._replace(encoded=bool(spec.images))


def embedding_actor(spec: Spec, cfg: TD7Config) -> Architecture:
    """TD7's actor and the encoder of states before it."""
    sizes = (spec.observation_size, *[cfg.encoder_hidden] * 2, cfg.embedding, *cfg.actor_hidden, spec.action_size)
    return Architecture(EMBEDDING, embedding_kind, sizes)


def pair_encoder(spec: Spec, cfg: TD7Config) -> Architecture:
    """TD7's encoder of an embedded state and an action."""
    sizes = (cfg.embedding + spec.action_size, *[cfg.encoder_hidden] * 2, cfg.embedding)
    return architecture("mlp", sizes, "elu")


def embedding_critic(spec: Spec, cfg: TD7Config) -> Architecture:
    """TD7's critic, which sees both embeddings beside the state and the action."""
    sizes = (spec.observation_size + spec.action_size, 2 * cfg.embedding, *cfg.critic_hidden, 1)
    return Architecture("critic", Kind(beside_layout, beside), sizes, "elu")


def encoder_of(spec: Spec, cfg: TD3Config) -> Encoder | None:
    """The encoder of an environment's images; None if it has none."""
    if not spec.images:
        return None
    shapes = tuple(image.shape for image in spec.images)
    encoder = Encoder(shapes, spec.stack, cfg.encoder_strides, cfg.encoder_channels, cfg.encoder_features)
    try:
        encoder.outputs  # noqa: B018 (it may raise)
    except ValueError as error:
        raise UserError(f"{error}; give fewer or smaller td3.encoder_strides, or larger images") from None
    return encoder
