"""Algorithms as values. The learner, the engines and checkpoints work with any of them and know no network by name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from t3d.algo import td7
from t3d.algo.coefficients import for_members
from t3d.algo.networks import Actor
from t3d.algo.pixels import pixels_draws, pixels_init, pixels_update
from t3d.algo.td3 import coefficients_of, polyak, td3_draws, td3_init, td3_parameters, td3_update
from t3d.config import Config, RuleConfig, TD3Config, TD7Config, merge, plain
from t3d.config.presets import preset
from t3d.config.sweeps import refuse_field, swept
from t3d.errors import UserError
from t3d.modules import is_own, named_or_own
from t3d.policy.spec import Spec
from t3d.types import EpisodeResult, Source

Agent = Any  # a NamedTuple of stacks, AdamStates and tensors, which updates change in place


class PeriodicOperation(NamedTuple):
    """Something that happens between updates, after every so many."""

    every: int  # updates of a member
    run: Callable[[Agent, Any], None]  # (agent, cfg); changes the agent in place
    # (source, members it is due for) -> what the source of batches is told then
    tells: Callable[[Source, Sequence[int]], None] = lambda *_: None


class Resting(NamedTuple):
    """How the critics learn while the actor rests."""

    phase: Hashable  # of each update
    follow: Callable[[Agent, Any], None]  # (agent, coefficients): what follows the critics, once in a cycle of phases


class Hearing(NamedTuple):
    """How a rule that hears episodes says when updates are due."""

    # (agent, cfg, member, episode, its updates so far) -> the steps whose updates are due with the end of this episode
    hear: Callable[[Agent, Any, int, EpisodeResult, int], int]
    # Fields of the agent that hold what it has heard, which begins anew where the task may be another.
    memory: tuple[str, ...] = ()


class Rule(NamedTuple):
    """An algorithm: what it learns, and how one update changes that.

    An agent is a NamedTuple, and the names of its fields are the names in checkpoints. Each tensor in it that holds
    floats has a leading axis for members (or members times critics), so that members share nothing.
    """

    init: Callable[..., Agent]  # (spec, cfg, seeds, device, dtype)
    # (agent, batch, draws, cfg, coefficients, phase) -> trace; changes the agent in place. A trace is a NamedTuple of
    # tensors (M, ...) with q and td (M, C, B), y (M, B), and losses (M,) by name; complete ones have critic and actor.
    update: Callable[..., Any]
    settings: type[RuleConfig] = TD3Config
    coefficients: Callable[[Any], Any] = coefficients_of  # a NamedTuple of floats, one of them gamma
    # Taken in turn; the last one's trace is complete. TD3's say whether the actor moves: each policy_delay-th does.
    phases: Callable[[Any], Sequence[Hashable]] = lambda cfg: [False] * (cfg.policy_delay - 1) + [True]
    # A NamedTuple of shapes (or None); updates get normal draws of these.
    draws: Callable[[Spec, Any], Any] = td3_draws
    acting: Callable[[Agent], Actor] = lambda agent: agent.actor  # collects transitions
    shipped: Callable[[Agent], Actor] = lambda agent: agent.actor  # is evaluated and saved
    parameters: Callable[[Spec, Any], int] = td3_parameters  # learned by one member
    periodic: tuple[PeriodicOperation, ...] = ()
    resting: Resting | None = None  # None: its actor cannot rest
    hearing: Hearing | None = None  # None: updates are due step by step


TD3 = Rule(  # while its actor rests: steps 4 to 12 and 15
    td3_init,
    td3_update,
    resting=Resting(False, lambda agent, coefficients: polyak(agent.critic_target, agent.critic, coefficients.tau)),
)
PIXELS = Rule(  # TD3 for observations with images; the parameters of its actor include the encoder's
    pixels_init,
    pixels_update,
    draws=pixels_draws,
    acting=lambda agent: agent.policy,
    shipped=lambda agent: agent.policy,
)
TD7 = Rule(
    td7.init,
    td7.update,
    TD7Config,
    td7.coefficients_of,
    draws=td7.draws_of,
    acting=lambda agent: agent.policy,
    shipped=lambda agent: agent.checkpoint,
    parameters=td7.parameters,
    periodic=(PeriodicOperation(250, td7.copy_hard, lambda source, members: source.find_highest(members)),),
    hearing=Hearing(td7.hear, ("assessment",)),
)
RULES = {"td3": TD3, "td7": TD7}
WITH_IMAGES = {"td3": PIXELS}


def rule_of(name: str, spec: Spec | None = None) -> Rule:
    """Returns a rule by its name, for an environment with or without images; one of the user's own is imported."""
    has_images = spec is not None and len(spec.images) > 0
    if has_images and name in RULES and name not in WITH_IMAGES:
        raise UserError(f"algo={name} has no encoder of images, which are observed here; use --algo td3")
    return named_or_own(name, WITH_IMAGES if has_images else RULES, Rule, "rule")


def with_own_settings(cfg: Config) -> Config:
    """Completes the settings of a rule of the user's own; refuses those that the algorithm does not read."""
    kind = rule_of(cfg.algo).settings
    if not is_own(cfg.algo):
        if cfg.own:
            raise UserError(f"own.{next(iter(cfg.own))} is for a rule of your own, and algo={cfg.algo} is none")
        return _without_others(cfg, kind)
    cfg = _without_others(cfg, kind)
    if kind is TD3Config:
        if cfg.own:
            raise UserError(f"{cfg.algo} declares no settings of its own, so own.{next(iter(cfg.own))} is unknown")
        return cfg
    if kind.prefix != RuleConfig.prefix:
        how = f"write class {kind.__name__}(..., prefix='{RuleConfig.prefix}')"
        raise UserError(f"the settings of {cfg.algo} are called {kind.prefix}, and must be called own.; {how}")
    return replace(cfg, own=asdict(merge(kind(), cfg.own, prefix=kind.prefix)))


def _without_others(cfg: Config, kind: type[RuleConfig]) -> Config:
    """Refuses settings of other algorithms; what a preset says of them does not apply."""
    for other in (TD3Config, TD7Config):
        if kind.prefix == other.prefix:
            continue
        section, default = other.prefix.removesuffix("."), other()
        given, of_preset = getattr(cfg, section), getattr(preset(cfg.preset), section)
        for name, value in asdict(given).items():
            if value not in (getattr(of_preset, name), getattr(default, name)):
                used = f"the settings of {cfg.algo} are called {kind.prefix}NAME"
                raise UserError(f"{other.prefix}{name}={plain(value)} is not used: {used}")
        cfg = merge(cfg, {section: asdict(default)})
    return cfg


def coefficients_of_members(cfg: Config, rule: Rule) -> Any:
    """Returns the numbers that the rule's updates read; those that differ between members are tensors (M,)."""
    same = rule.coefficients(cfg.settings_of(kind=rule.settings))
    prefixes = (TD3Config.prefix, TD7Config.prefix, RuleConfig.prefix)
    fields = [name for name in swept(cfg.members) if name.startswith(prefixes)]
    if not fields:
        return same
    for field in fields:
        refuse_field(field, [f"{cfg.section}.{name}" for name in same._fields if hasattr(rule.settings, name)])
    return for_members(
        [rule.coefficients(cfg.settings_of(member, rule.settings)) for member in cfg.members], cfg.device
    )
