"""Architectures: torch and NumPy agree, for every one there is."""

from __future__ import annotations

import math
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from torch import nn

import helpers
from rules_in_tests import ALL_NETWORKS
from t3d.algo.networks import ACTIVATIONS as IN_TORCH
from t3d.algo.networks import Actor, Critic, Stack, initial
from t3d.config import TD3Config
from t3d.config.networks import actor_architecture, architecture
from t3d.errors import UserError
from t3d.policy.acting import MemberPolicy, PolicySnapshot, numpy_operations
from t3d.policy.architectures import ACTIVATIONS, KINDS, Architecture

NAMES = [f"{kind}-{activation}" for kind, activation in ALL_NETWORKS]


def random_stack(network: Architecture, count: int, dtype: torch.dtype = torch.float32) -> Stack:
    """Networks whose scales and shifts are not what they start as."""
    flat = initial(network, range(count), dtype)
    return Stack(network, flat + 0.1 * torch.randn(flat.shape, generator=torch.Generator().manual_seed(1), dtype=dtype))


@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS, ids=NAMES)
def test_numpy_computes_what_torch_computes(kind: str, activation: str) -> None:
    network = architecture(kind, (17, 32, 32, 6), activation)
    stack = random_stack(network, 3)
    x = 3 * torch.randn(3, 50, 17, generator=torch.Generator().manual_seed(0))
    x[:, 0] = 1e4  # far beyond where an exponential overflows
    x[:, 1] = -1e4
    expected = stack.forward(x).detach()
    assert expected.std() > 0.1
    for member in range(3):
        parameters = [one[0] for one in network.parameters(stack.flat[member : member + 1].numpy())]
        with np.errstate(all="raise", under="ignore"):
            given = network.kind.forward(parameters, x[member].numpy().copy(), numpy_operations(activation))
        assert given.dtype == np.float32
        scale = expected[member].abs().amax(dim=1, keepdim=True)
        assert ((torch.from_numpy(given) - expected[member]).abs() <= 1e-5 * scale + 1e-5).all()


@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS, ids=NAMES)
def test_the_acting_policy_is_the_learners_actor(kind: str, activation: str) -> None:
    cfg = TD3Config(actor_network=kind, actor_activation=activation, actor_hidden=(16, 16))  # type: ignore[arg-type]
    spec = helpers.make_spec()
    network = actor_architecture(spec, cfg)
    actor = Actor(network, random_stack(network, 2).flat)
    s = torch.randn(2, 20, spec.observation_size)
    snapshot = PolicySnapshot(0, network, actor.flat.numpy())
    for member in range(2):
        acted = MemberPolicy(snapshot, member)(s[member].numpy())
        np.testing.assert_allclose(acted, actor(s)[member].detach().numpy(), atol=2e-6)


@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS, ids=NAMES)
def test_networks_of_a_stack_share_nothing_and_their_gradient_is_autograds(kind: str, activation: str) -> None:
    stack = random_stack(architecture(kind, (4, 8, 8, 2), activation), 3, torch.float64)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    together = stack.gradient(stack.forward(x).square().sum())
    for member in range(3):
        alone = Stack(stack.architecture, stack.flat[member : member + 1].clone())
        loss = alone.forward(x[member : member + 1]).square().sum()
        assert torch.allclose(alone.gradient(loss)[0], together[member], atol=1e-12)
    step = 1e-6
    for place in range(0, stack.flat.shape[1], 7):
        sides = []
        for sign in (1, -1):
            flat = stack.flat.clone()
            flat[1, place] += sign * step
            sides.append(Stack(stack.architecture, flat).forward(x).detach().square().sum())
        assert float((sides[0] - sides[1]) / (2 * step)) == pytest.approx(float(together[1, place]), rel=1e-4, abs=1e-4)


def test_layers_are_those_of_pytorch() -> None:
    """LayerNorm and the residual block, built from modules."""
    size = 6
    norm, wide, narrow = nn.LayerNorm(size), nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
    first, last_norm, last = nn.Linear(3, size), nn.LayerNorm(size), nn.Linear(size, 2)
    for module in (norm, last_norm):
        nn.init.normal_(module.weight)
        nn.init.normal_(module.bias)
    x = torch.randn(7, 3)
    features = first(x)
    residual = last(last_norm(features + narrow(torch.relu(wide(norm(features))))))
    ours = as_stack("residual", (3, size, 2), first, norm, wide, narrow, last_norm, last)
    assert torch.allclose(ours(x), residual, atol=1e-5)
    normalised = last(nn.functional.elu(norm(first(x))))
    ours = as_stack("layer_norm", (3, size, 2), first, norm, last, activation="elu")
    assert torch.allclose(ours(x), normalised, atol=1e-5)


def as_stack(kind: str, sizes: tuple[int, ...], *modules: Any, activation: str = "relu"):  # type: ignore[no-untyped-def]
    pieces = []
    for module in modules:
        weight = module.weight.T if isinstance(module, nn.Linear) else module.weight
        pieces += [weight.reshape(-1), module.bias.reshape(-1)]
    stack = Stack(architecture(kind, sizes, activation), torch.cat(pieces).detach().unsqueeze(0))
    return lambda x: stack.forward(x.unsqueeze(0))[0]


def test_scales_start_at_one_and_shifts_at_zero() -> None:
    network = architecture("residual", (3, 8, 8, 2), "relu")
    layout = network.kind.layout(network.sizes)
    parameters = network.parameters(initial(network, [0, 1], torch.float32))
    for values, (_, bound, start) in zip(parameters, layout, strict=True):
        if bound:
            assert values.abs().max() <= bound and values.std() > 0.3 * bound
        else:
            assert (values == start).all()
    assert [one.start for one in layout].count(1.0) == 3, "a scale for each block and one before the output"


def test_the_list_is_complete() -> None:
    assert set(IN_TORCH) == set(ACTIVATIONS)
    hints = get_type_hints(TD3Config)
    assert set(get_args(hints["actor_activation"])) == set(get_args(hints["critic_activation"])) == set(ACTIVATIONS)
    assert len(ALL_NETWORKS) == len(KINDS) * len(ACTIVATIONS) == 15


def test_parameters_are_counted() -> None:
    assert architecture("mlp", (17, 256, 256, 6), "relu").size == 17 * 256 + 256 + 256 * 256 + 256 + 256 * 6 + 6
    assert architecture("layer_norm", (3, 5, 2), "relu").size == 3 * 5 + 5 + 2 * 5 + 5 * 2 + 2
    assert architecture("residual", (3, 5, 2), "relu").size == 20 + 10 + (5 * 20 + 20) + (20 * 5 + 5) + 10 + 12


@pytest.mark.parametrize(
    ("kind", "sizes", "words"),
    [
        ("residual", (3, 8, 9, 2), r"hidden layers, at least one, must all have the same size, not \[8, 9\]"),
        ("residual", (3, 2), "at least one"),
        ("layernorm", (3, 8, 2), "unknown network layernorm, did you mean layer_norm"),
        ("nowhere.py:net", (3, 8, 2), "there is no file"),
    ],
)
def test_a_network_that_does_not_exist_is_refused_in_a_sentence(kind: str, sizes: tuple[int, ...], words: str) -> None:
    with pytest.raises(UserError, match=words):
        architecture(kind, sizes, "relu")


def test_critics_take_every_architecture() -> None:
    network = architecture("layer_norm", (8, 16, 1), "silu")
    critic = Critic(network, initial(network, range(6), torch.float32), members=2)
    s, a = torch.randn(2, 4, 5), torch.randn(2, 4, 3)
    assert critic(s, a).shape == (2, 3, 4) and torch.allclose(critic.q1(s, a), critic(s, a)[:, 0], atol=1e-6)


def test_gelu_is_close_to_the_exact_one() -> None:
    x = np.linspace(-6, 6, 1001, dtype=np.float32)
    exact = np.array([0.5 * one * (1 + math.erf(one / 2**0.5)) for one in x.tolist()])
    assert np.abs(ACTIVATIONS["gelu"](x) - exact).max() < 1e-3
