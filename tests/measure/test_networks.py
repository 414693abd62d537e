"""Figures of networks: norms, gradients recovered from Adam, and units that pass nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import helpers
from ddpg import DDPG
from image_batches import image_batches, image_spec
from t3d.algo.adam import AdamState, adam_init, adam_step
from t3d.algo.networks import Actor, Critic, initial, layers_of, named_fields
from t3d.algo.pixels import pixels_init, pixels_update
from t3d.algo.rules import TD3
from t3d.algo.td3 import coefficients_of
from t3d.config import TD3Config
from t3d.measure import dead_units, first_moments, gradient, networks, norms, record_activations

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=32, actor_hidden=(16, 16), critic_hidden=(16, 16), encoder_channels=4)


def test_networks_are_found_without_their_targets() -> None:
    for rule in (TD3, DDPG):
        agent = rule.init(SPEC, CFG, (0, 1), "cpu", torch.float32)
        assert networks(agent) == {"actor": agent.actor, "critic": agent.critic}
        assert [*first_moments(agent)] == ["actor", "critic"]


def test_an_actor_with_images_is_an_encoder_and_an_actor() -> None:
    agent = pixels_init(image_spec((3, 32, 32)), CFG, (0,))
    assert [*networks(agent)] == ["encoder", "actor", "critic"] and [*first_moments(agent)] == [*networks(agent)]
    adams = [name for name, value in named_fields(agent) if isinstance(value, AdamState)]
    assert adams == ["encoder_adam", "actor_adam", "critic_adam"]


def test_norms_are_taken_over_all_rows_of_a_member() -> None:
    flat = torch.tensor([[3.0, 0.0], [0.0, 4.0], [1.0, 1.0], [1.0, 1.0]])  # two members with two critics each
    assert norms(flat, 2) == [5, 2]


def test_the_gradient_is_recovered_from_the_first_moment() -> None:
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(3, 7, generator=generator)
    state, truth = adam_init(flat), [torch.randn(3, 7, generator=generator) for _ in range(4)]
    for one in truth:
        before = state.mean.double()
        adam_step(state, flat, one, 0.01)
        assert torch.allclose(gradient(before, state.mean.double()), one.double(), atol=1e-6)


@pytest.mark.parametrize("rule", [TD3, DDPG])
def test_the_gradient_of_an_update_is_that_of_autograd(rule: Any) -> None:
    """Of the critics in the first update; any rule's moments will do."""
    agent = rule.init(SPEC, CFG, (0, 1), "cpu", torch.float64)
    (batch, draws), *_ = helpers.random_batches(SPEC, CFG, 2, 1)
    before, critic = first_moments(agent), agent.critic.copy()
    trace = rule.update(agent, batch, draws, CFG, coefficients_of(CFG), rule.phases(CFG)[-1])
    found = gradient(before["critic"], first_moments(agent)["critic"])
    loss = (critic(batch.s, batch.a) - trace.y.unsqueeze(1)).square().mean(2).sum()
    assert torch.allclose(found, critic.gradient(loss), atol=1e-12) and found.abs().max() > 1e-3


def with_dead(network: Any, dead: list[int]) -> None:
    """Gives some units of the first hidden layer, in each network of a stack, a bias that no input overcomes."""
    for place, units in enumerate(dead):
        layers_of(network.architecture, network.flat)[0][1][place, 0, :units] = -1e6


def test_units_that_are_zero_for_the_whole_batch_are_dead() -> None:
    network = helpers.mlp(5, 8, 16, 2)
    actor = Actor(network, initial(network, [0, 1], torch.float32))
    with_dead(actor, [8, 2])
    layers_of(network, actor.flat)[1][1][:] = 1.0  # whatever the first layer passes on
    forwards = record_activations(actor)
    y = actor.forward(torch.randn(2, 500, 5, generator=torch.Generator().manual_seed(0)))
    assert y.requires_grad and len(forwards) == 1 and [one.shape[-1] for one in forwards[0]] == [8, 16]
    assert dead_units(forwards[0], 2) == pytest.approx([8 / 24, 2 / 24])
    actor.forward(torch.zeros(2, 1, 5))
    assert len(forwards) == 2 and not forwards[0][0].requires_grad


def test_critics_count_as_one_network_of_their_member_and_compute_what_they_did() -> None:
    network = helpers.mlp(5 + 3, 10, 1)
    critic = Critic(network, initial(network, range(4), torch.float32), 2)
    with_dead(critic, [10, 5, 0, 0])
    s, a = (torch.randn(2, 600, size, generator=torch.Generator().manual_seed(size)) for size in (5, 3))
    before, forwards = critic(s, a), record_activations(critic)
    assert torch.equal(critic(s, a), before)
    assert dead_units(forwards[0], 2) == [0.75, 0]
    critic.q1(s, a)
    assert [len(one[0]) for one in forwards] == [4, 2], "every second network only"


def test_watching_a_network_with_images_sees_what_comes_after_the_encoder() -> None:
    spec = image_spec((3, 32, 32))
    agent = pixels_init(spec, CFG, (0, 1))
    forwards = {name: record_activations(one) for name, one in networks(agent).items()}
    (batch, draws), *_ = image_batches(spec, CFG, 2, 1, torch.float32)
    pixels_update(agent, batch, draws, CFG, coefficients_of(CFG), True)
    assert [len(one) for one in forwards["encoder"][0]] == [] and len(forwards["actor"][0]) == 2
    assert [layer.shape for layer in forwards["critic"][0]] == [(4, 32, 16)] * 2
