"""Tries a user's own networks and rule before a run starts: a mistake is a sentence, and nothing has been written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3d.algo.adam import AdamState
from t3d.algo.coefficients import for_members
from t3d.algo.engines.verify import random_batch
from t3d.algo.learner import Learner, named_tensors
from t3d.algo.networks import ImageActor, Stack, initial
from t3d.algo.rules import Rule
from t3d.config import Config, TD3Config
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.config.sweeps import swept
from t3d.errors import UserError
from t3d.modules import is_own, where_it_failed
from t3d.policy.architectures import KINDS, Architecture, numpy_operations
from t3d.policy.spec import Spec
from t3d.types import Batch

TOLERANCE = 1e-4  # of the largest output; float32 in another order differs by 1e-6
SEEDS = (0, 1)
MOST_IN_BATCH = 8  # chosen: enough to try an update
MAY_BE_IGNORED: dict[str, tuple[str, ...]] = {  # by a rule of the user's own; with the settings that go with each
    "aggregate": ("drop_highest",),
    "actor_objective": (),
    "critic_loss": ("value_low", "value_high", "value_bins"),
    "lr_schedule": ("lr_final", "lr_updates"),
    "weight_decay": (),
    "max_grad_norm": (),
    "pre_activation_penalty": (),
    "image_shift": (),
}
EXTREME: dict[str, Any] = {
    "weight_decay": 1.0,
    "max_grad_norm": 1e-6,
    "pre_activation_penalty": 1e3,
}  # what nobody could overlook


class Wrong(Exception):
    """What is wrong with the user's code, in words."""


def check_own_code(cfg: Config, spec: Spec, rule: Rule) -> None:
    """Raises a UserError if a network or a rule of the user's own cannot be used."""
    actor, critic = actor_architecture(spec, cfg.td3), critic_architecture(spec, cfg.td3)
    for network, acts in ((actor, True), (critic, False)):
        if is_own(network.name):
            with _blamed(f"the network {network.name}"):
                _try_network(network.without_images, acts=acts)
    if is_own(cfg.rule):
        with _blamed(f"the rule {cfg.rule}"):
            learner = _try_rule(rule, spec, cfg.td3)
            _refuse_ignored(rule, spec, cfg)
            for one in {learner.acting, learner.shipped}:
                _check_known(one.architecture, actor, needs_settings=cfg.async_actors > 0)


@contextmanager
def _blamed(what: str) -> Iterator[None]:
    """Turns whatever the user's code raises into a sentence."""
    try:
        yield
    except Wrong as problem:
        raise UserError(f"{what} cannot be used: {problem}") from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} cannot be used: {where_it_failed(error)}") from error


def _try_network(network: Architecture, *, acts: bool) -> None:
    """Compares torch, K networks at once, with NumPy, with which policies act."""
    generator = torch.Generator().manual_seed(0)
    flat = initial(network, SEEDS, torch.float32)
    stack = Stack(network, flat + 0.1 * torch.randn(flat.shape, generator=generator))  # scales are no longer one
    x = torch.randn(len(SEEDS), MOST_IN_BATCH, network.sizes[0], generator=generator)
    output = stack.forward(x)
    _refuse_shape("torch, for K networks at once,", output, (*x.shape[:2], network.sizes[-1]))
    stack.gradient(output.square().sum())
    if acts:
        before, parameters = x[1].numpy().copy(), [one[1] for one in network.parameters(stack.flat.numpy())]
        given = network.kind.forward(parameters, before, numpy_operations(network.activation))
        _refuse_shape("NumPy, with which policies act,", given, (MOST_IN_BATCH, network.sizes[-1]))
        if not np.array_equal(before, x[1].numpy()):
            raise Wrong("it overwrites its input")
        expected = output[1].detach().numpy()
        far = float(np.abs(given - expected).max())
        if not far <= TOLERANCE * float(np.abs(expected).max()):
            raise Wrong(f"NumPy, with which policies act, and torch differ by {far:.2g}")


def _refuse_shape(where: str, output: Any, shape: tuple[int, ...]) -> None:
    if tuple(np.shape(output)) != shape:
        raise Wrong(f"in {where} it returns shape {tuple(np.shape(output))} instead of {shape}")


def _try_rule(rule: Rule, spec: Spec, cfg: TD3Config) -> Learner:
    """Makes one cycle of updates and every rare operation once, on an agent of its own."""
    cfg = replace(cfg, batch_size=min(cfg.batch_size, MOST_IN_BATCH))
    if not len(rule.phases(cfg)):
        raise Wrong("it has no phases")
    if any(rare.every < 1 for rare in rule.rare):
        raise Wrong("a rare operation must come after one or more updates")
    learner, batch = Learner(spec, cfg, SEEDS, rule=rule), random_batch(spec, cfg, len(SEEDS), "cpu")
    _check_agent(learner)
    if not hasattr(learner.coefficients, "gamma"):
        raise Wrong("its coefficients have no gamma")
    trace = _cycle(learner, batch)
    for rare in rule.rare:
        rare.run(learner.agent, cfg)
    larger = replace(cfg, batch_size=cfg.batch_size + 1)  # as diagnostics have
    draws, batch = Learner(spec, larger, SEEDS, rule=rule).draw(), random_batch(spec, larger, len(SEEDS), "cpu")
    rule.update(learner.agent, batch, draws, larger, learner.coefficients, learner.phases[-1])
    missing = [name for name in ("q", "y", "td", "losses") if getattr(trace, name, None) is None]
    missing += [f"losses[{name!r}]" for name in ("critic", "actor") if not missing and name not in trace.losses]
    if missing:
        raise Wrong(f"the trace of its last phase lacks {', '.join(missing)}")
    for name, loss in trace.losses.items():
        _refuse_shape(f"the trace, losses[{name!r}]:", loss, (len(SEEDS),))
    if trace.td.ndim != 3 or (trace.td.shape[0], trace.td.shape[2]) != (len(SEEDS), cfg.batch_size):
        raise Wrong(f"td of its trace has shape {tuple(trace.td.shape)}, not (seeds, critics, batch)")
    _refuse_shape("the trace, q:", trace.q, tuple(trace.td.shape))
    _refuse_shape("the trace, y:", trace.y, (len(SEEDS), cfg.batch_size))
    learner.restore(learner.state())
    return learner


def _cycle(learner: Learner, batch: Batch) -> Any:
    """Makes one cycle of updates and returns its last trace."""
    try:
        for _ in learner.phases:
            trace = learner.update(batch, learner.draw())
    except Exception:
        if learner.spec.images and not any(isinstance(one, ImageActor) for one in learner.agent):
            said = "its networks are for vectors, and the observations have images"
            raise Wrong(f"{said}; base it on PIXELS of t3d.algo.rules") from None
        raise
    return trace


def _refuse_ignored(rule: Rule, spec: Spec, cfg: Config) -> None:
    """Refuses settings that a rule takes no notice of: one cycle of updates is the same without them."""
    small = replace(cfg.td3, batch_size=min(cfg.td3.batch_size, MOST_IN_BATCH))
    batch = random_batch(spec, small, len(SEEDS), "cpu")

    def learned(changed: TD3Config, weight: Tensor) -> Tensor:
        learner = Learner(spec, changed, SEEDS, rule=rule)
        for _ in range(2 * len(learner.phases)):
            learner.update(batch._replace(weight=weight), learner.draw())
        return torch.cat([tensor.flatten().double() for _, tensor in named_tensors(learner.agent)])

    ours = learned(small, batch.weight)
    for name, others in MAY_BE_IGNORED.items():
        plain = replace(small, **{one: getattr(TD3Config, one) for one in (name, *others)})
        extreme = replace(small, **({name: EXTREME[name]} if name in EXTREME else {}))
        if plain != small and torch.equal(learned(extreme, batch.weight), learned(plain, batch.weight)):
            raise Wrong(f"it takes no notice of td3.{name}")
    if cfg.replay.sampling == "proportional" and torch.equal(ours, learned(small, batch.weight.flip(1))):
        raise Wrong("it takes no notice of the weights of transitions, which replay.sampling=proportional needs")


def check_own_sweep(cfg: Config, spec: Spec, rule: Rule) -> None:
    """Raises a UserError if a rule of the user's own mixes up numbers that differ between members."""
    if is_own(cfg.rule) and swept(cfg.members):
        with _blamed(f"the rule {cfg.rule}"):
            _try_sweep(rule, spec, cfg)


def _try_sweep(rule: Rule, spec: Spec, cfg: Config) -> None:
    """Compares two members that differ as in the sweep with each of them alone."""
    members = (cfg.members[0], cfg.members[-1])
    small = [replace(cfg.td3_of(member), batch_size=min(cfg.td3.batch_size, MOST_IN_BATCH)) for member in members]
    coefficients = for_members([rule.coefficients(one) for one in small])
    together = Learner(spec, small[0], SEEDS, rule=rule, coefficients=coefficients)
    batch, draws = random_batch(spec, small[0], len(SEEDS), "cpu"), together.draw()
    for _ in together.phases:
        together.update(batch, draws)
    for place, (one, seed) in enumerate(zip(small, SEEDS, strict=True)):
        alone = Learner(spec, one, (seed,), rule=rule)
        for _ in alone.phases:
            alone.update(_member_of(batch, place), _member_of(draws, place))
        ours = dict(named_tensors(together.agent))
        for name, expected in named_tensors(alone.agent):
            if not expected.ndim:  # one number for all members, which cannot be compared with one member's
                continue
            given = ours[name].view(len(SEEDS), -1)[place].view_as(expected)
            if not torch.allclose(given, expected, atol=TOLERANCE):
                raise Wrong(f"with numbers that differ between members, {name} is not what a member learns alone")


def _member_of(values: Any, member: int) -> Any:
    """One member's part of a batch or of draws."""
    return type(values)(*(None if part is None else part[member : member + 1] for part in values))


def _check_agent(learner: Learner) -> None:
    """An agent consists of tensors, each name once; those of floats have an axis for members."""
    tensors = list(named_tensors(learner.agent))
    names = ["updates", *learner.draw()._fields, *(name for name, _ in tensors)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise Wrong(f"{', '.join(twice)} is the name of two things in a checkpoint")
    for name, tensor in tensors:
        if not isinstance(tensor, Tensor):
            raise Wrong(f"{name} of its agent is of type {type(tensor).__name__}, not a tensor")
        if tensor.is_floating_point() and tensor.ndim and len(tensor) % learner.members:
            raise Wrong(f"{name} of its agent has shape {tuple(tensor.shape)}, without an axis for seeds")
    said = learner.rule.parameters(learner.spec, learner.cfg)
    learned = sum(one.mean.numel() // learner.members for one in learner.agent if isinstance(one, AdamState))
    if learned != said:
        raise Wrong(f"its parameters() are {said:,}, but its optimisers move {learned:,} for each seed")


def _check_known(network: Architecture, actor: Architecture, *, needs_settings: bool) -> None:
    """A policy file must say what its network is, and actor processes only know what the settings describe."""
    if network.name not in KINDS and network.name != actor.name:
        raise Wrong(f"its actor's network, {network.name}, is neither one of T3D's nor the one in td3.actor_network")
    if needs_settings and network != actor:
        raise Wrong(
            "it acts with another network than td3.actor_network and td3.actor_hidden describe, which actor processes "
            "do not know; use --actors inline"
        )
