"""Tries a user's own networks and rule before a run starts: a mistake is a sentence, and nothing has been written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from t3d.algo.adam import AdamState
from t3d.algo.coefficients import for_members
from t3d.algo.engines.verify import FixedBatch, random_batch
from t3d.algo.learner import Learner
from t3d.algo.networks import ImageActor, Stack, initial, named_tensors
from t3d.algo.rules import Rule, coefficients_of_members
from t3d.config import Config, RuleConfig
from t3d.config.fields import known_settings, settings_where
from t3d.config.networks import actor_architecture, critic_architecture
from t3d.config.sweeps import swept
from t3d.errors import UserError
from t3d.modules import is_own, where_it_failed
from t3d.policy.acting import numpy_operations
from t3d.policy.architectures import SAVED_KINDS, Architecture
from t3d.policy.spec import Spec
from t3d.types import Batch

TOLERANCE = 1e-4  # of the largest output; float32 in another order differs by 1e-6
SEEDS = (0, 1)
MOST_IN_BATCH = 8  # chosen: enough to try an update


class Wrong(Exception):
    """What is wrong with the user's code, in words."""


def check_own_code(cfg: Config, spec: Spec, rule: Rule) -> None:
    """Raises a UserError if a network or a rule of the user's own cannot be used, or not in this sweep."""
    settings = cfg.settings_of(kind=rule.settings)
    describe = {"actor_network": actor_architecture, "critic_network": critic_architecture}
    for name, network in cfg.networks.items():
        if is_own(network):
            with _blamed(f"the network {network}"):
                _try_network(describe[name](spec, settings).without_images, acts=name == "actor_network")
    if is_own(cfg.algo):
        with _blamed(f"the rule {cfg.algo}"):
            learner = _try_rule(rule, spec, _small(settings))
            _refuse_ignored(rule, spec, cfg)
            for acting in {learner.acting, learner.shipped}:
                described = actor_architecture(spec, settings) if "actor_network" in cfg.networks else None
                _check_acting(acting.architecture, described, cfg.section, needs_settings=cfg.async_actors > 0)
            coefficients_of_members(cfg, rule)  # refuses what cannot be swept
            if swept(cfg.members):
                _try_sweep(rule, spec, cfg)


@contextmanager
def _blamed(code: str) -> Iterator[None]:
    """Turns whatever the user's code raises into a sentence."""
    try:
        yield
    except Wrong as problem:
        raise UserError(f"{code} cannot be used: {problem}") from None
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{code} cannot be used: {where_it_failed(error)}") from error


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Wrong(otherwise)


def _require_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    _require(tuple(np.shape(array)) == shape, f"{name} has shape {tuple(np.shape(array))} instead of {shape}")


def _small(cfg: Any) -> Any:
    return replace(cfg, batch_size=min(cfg.batch_size, MOST_IN_BATCH))


def _learned(
    cycles: int, rule: Rule, spec: Spec, cfg: RuleConfig, batch: Batch, seeds: Sequence[int], coefficients: Any = None
) -> dict[str, Tensor]:
    """The tensors of an agent after some cycles of updates."""
    learner = Learner(spec, cfg, seeds, rule=rule, coefficients=coefficients, source=FixedBatch(batch))
    learner.run(cycles * len(learner.phases))
    return dict(named_tensors(learner.agent))


def _try_network(network: Architecture, *, acts: bool) -> None:
    """Compares torch, K networks at once, with NumPy, with which policies act."""
    generator = torch.Generator().manual_seed(0)
    flat = initial(network, SEEDS, torch.float32)
    stack = Stack(network, flat + 0.1 * torch.randn(flat.shape, generator=generator))  # scales are no longer one
    x = torch.randn(len(SEEDS), MOST_IN_BATCH, network.sizes[0], generator=generator)
    output = stack.forward(x)
    _require_shape("what it returns in torch, for K networks at once,", output, (*x.shape[:2], network.sizes[-1]))
    stack.gradient(output.square().sum())
    if not acts:
        return
    inputs, parameters = x[1].numpy().copy(), [part[1] for part in network.parameters(stack.flat.numpy())]
    acted = network.kind.forward(parameters, inputs, numpy_operations(network.activation))
    _require_shape("what it returns in NumPy, with which policies act,", acted, (MOST_IN_BATCH, network.sizes[-1]))
    _require(np.array_equal(inputs, x[1].numpy()), "it overwrites its input")
    expected = output[1].detach().numpy()
    difference = float(np.abs(acted - expected).max())
    is_close = difference <= TOLERANCE * float(np.abs(expected).max())
    _require(is_close, f"NumPy, with which policies act, and torch differ by {difference:.2g}")


def _try_rule(rule: Rule, spec: Spec, cfg: RuleConfig) -> Learner:
    """Performs one cycle of updates and every periodic operation once, on an agent of its own."""
    _require(len(rule.phases(cfg)) > 0, "it has no phases")
    is_periodic = all(operation.every >= 1 for operation in rule.periodic)
    _require(is_periodic, "a periodic operation must come after one or more updates")
    learner, batch = Learner(spec, cfg, SEEDS, rule=rule), random_batch(spec, cfg, len(SEEDS), "cpu")
    _check_agent(learner)
    _require(hasattr(learner.coefficients, "gamma"), "its coefficients have no gamma")
    try:
        for _ in learner.phases:
            trace = learner.update(batch, learner.draw())
    except Exception:
        if spec.images and not any(isinstance(part, ImageActor) for part in learner.agent):
            wrong = "its networks are for vectors, and the observations have images"
            raise Wrong(f"{wrong}; base it on PIXELS of t3d.algo.rules") from None
        raise
    for operation in rule.periodic:
        operation.run(learner.agent, cfg)
    larger = replace(cfg, batch_size=cfg.batch_size + 1)  # as diagnostics have
    draws, batch = Learner(spec, larger, SEEDS, rule=rule).draw(), random_batch(spec, larger, len(SEEDS), "cpu")
    rule.update(learner.agent, batch, draws, larger, learner.coefficients, learner.phases[-1])
    _check_trace(trace, cfg)
    learner.restore(learner.state())
    return learner


def _check_trace(trace: Any, cfg: RuleConfig) -> None:
    missing = [name for name in ("q", "y", "td", "losses") if getattr(trace, name, None) is None]
    missing += [f"losses[{name!r}]" for name in ("critic", "actor") if not missing and name not in trace.losses]
    _require(not missing, f"the trace of its last phase lacks {', '.join(missing)}")
    shape, expected = tuple(trace.td.shape), (len(SEEDS), cfg.batch_size)
    has_axes = len(shape) == 3 and shape[::2] == expected
    _require(has_axes, f"td of its trace has shape {shape}, not (seeds, critics, batch)")
    losses = [(f"losses[{name!r}]", loss, expected[:1]) for name, loss in trace.losses.items()]
    for name, part, axes in (("q", trace.q, shape), ("y", trace.y, expected), *losses):
        _require_shape(f"{name} of its trace", part, axes)


def _check_agent(learner: Learner) -> None:
    """An agent consists of tensors, each name once; those of floats have an axis for members."""
    tensors = list(named_tensors(learner.agent))
    names = ["updates", *learner.draw()._fields, *(name for name, _ in tensors)]
    for name, tensor in tensors:
        _require(names.count(name) == 1, f"{name} is the name of two things in a checkpoint")
        kind = type(tensor).__name__
        _require(isinstance(tensor, Tensor), f"{name} of its agent is of type {kind}, not a tensor")
        is_shared = tensor.is_floating_point() and tensor.ndim and len(tensor) % learner.members
        _require(not is_shared, f"{name} of its agent has shape {tuple(tensor.shape)}, without an axis for seeds")
    declared = learner.rule.parameters(learner.spec, learner.cfg)
    moved = sum(part.mean.numel() // learner.members for part in learner.agent if isinstance(part, AdamState))
    _require(moved == declared, f"its parameters() are {declared:,}, but its optimisers move {moved:,} for each seed")


def _check_acting(network: Architecture, actor: Architecture | None, section: str, *, needs_settings: bool) -> None:
    """A policy file must say what its network is, and actor processes only know what the settings describe."""
    unknown = f"its actor's network, {network.name}, is neither one of T3D's nor the one in {section}.actor_network"
    _require(network.name in SAVED_KINDS or (actor is not None and network.name == actor.name), unknown)
    settings = f"{section}.actor_network and {section}.actor_hidden"
    other = f"it acts with another network than {settings} describe, which actor processes "
    _require(network == actor or not needs_settings, f"{other}do not know; use --actors inline")


def _refuse_ignored(rule: Rule, spec: Spec, cfg: Config) -> None:
    """Refuses settings that a rule takes no notice of: two cycles of updates are the same without them."""
    kind = rule.settings
    small, known = _small(cfg.settings_of(kind=kind)), known_settings(kind)
    batch = random_batch(spec, small, len(SEEDS), "cpu")

    def refuse_same(setting: str, changed: RuleConfig, plain: RuleConfig, other_batch: Batch) -> None:
        ours = _learned(2, rule, spec, changed, batch, SEEDS)
        theirs = _learned(2, rule, spec, plain, other_batch, SEEDS)
        is_ignored = all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())
        _require(not is_ignored, f"it takes no notice of {setting}")

    for name in settings_where(kind, lambda about: about.get("optional", False)):
        belonging = [name, *(other for other, about in known.items() if about.get("used_with", ("",))[0] == name)]
        plain = replace(small, **{other: getattr(kind, other) for other in belonging})
        if plain != small:
            extreme = replace(small, **{name: known[name].get("extreme", getattr(small, name))})
            refuse_same(f"{cfg.section}.{name}", extreme, plain, batch)
    if cfg.replay.sampling == "proportional":
        weights = "the weights of transitions, which replay.sampling=proportional needs"
        refuse_same(weights, small, small, batch._replace(weight=batch.weight.flip(1)))


def _try_sweep(rule: Rule, spec: Spec, cfg: Config) -> None:
    """Compares two members that differ as in the sweep with each of them alone."""
    each = [_small(cfg.settings_of(member, rule.settings)) for member in (cfg.members[0], cfg.members[-1])]
    batch = random_batch(spec, each[0], len(SEEDS), "cpu")
    coefficients = for_members([rule.coefficients(settings) for settings in each])
    ours = _learned(1, rule, spec, each[0], batch, SEEDS, coefficients)
    for member, (settings, seed) in enumerate(zip(each, SEEDS, strict=True)):
        part = Batch(*(values[member : member + 1] for values in batch))
        for name, expected in _learned(1, rule, spec, settings, part, (seed,)).items():
            if expected.ndim:  # without axes it is one number for all members, which cannot be compared
                given = ours[name].view(len(SEEDS), -1)[member].view_as(expected)
                is_same = torch.allclose(given, expected, atol=TOLERANCE)
                _require(is_same, f"with numbers that differ between members, {name} is not what a member learns alone")
