"""The complete TD7 algorithm (Fujimoto, Chang, Smith, Gu, Precup and Meger, 2023, "For SALE: State-Action
Representation Learning for Deep Reinforcement Learning"), for M members, trained side by side, that share nothing.

Step 1, the replay memory with LAP, is data/. Everything else is in this file, in the paper's letters: s, a, r, s2, y as
in td3.py; zs = f(s) and zsa = g(zs, a) are embeddings. There are three generations of their encoder: one learns, a
fixed one is what actor, critics and behaviour see, and an older one what the targets see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from t3d.algo.adam import AdamState, adam_init, adam_step
from t3d.algo.coefficients import rowwise
from t3d.algo.networks import Critic, EmbeddingActor, Stack, gradients, initial
from t3d.config import TD7Config
from t3d.config.networks import embedding_actor, embedding_critic, pair_encoder
from t3d.policy.spec import Spec
from t3d.seeds import derive
from t3d.types import Batch, Coefficient, Draws, EpisodeResult

HUGE = torch.finfo(torch.float32).max  # where nothing has been seen yet: above every value, and finite
FORGIVEN = 0.9  # the checkpoint's lowest return is multiplied by this once, when assessments become longer


class TargetRange(NamedTuple):
    """Targets so far, (M,) each: the all-time lowest and highest, and the limits that come from them."""

    lowest: Tensor
    highest: Tensor
    low: Tensor
    high: Tensor


class Assessment(NamedTuple):
    """How the policy has done since it last learned, (M,) each, float64."""

    episodes: Tensor
    steps: Tensor
    lowest: Tensor  # return of an episode
    best: Tensor  # the checkpoint's lowest return
    forgiven: Tensor  # 1.0 once assessments are longer


class TD7Agent(NamedTuple):
    """What TD7 learns, for all members; the names of its fields are the names in checkpoints."""

    f: Stack  # encoder of states, which learns
    g: Stack  # encoder of embedded states with actions, which learns
    policy: EmbeddingActor  # the fixed f, and the actor; acts
    g_fixed: Stack
    policy_target: EmbeddingActor
    g_target: Stack
    critic: Critic
    critic_target: Critic
    checkpoint: EmbeddingActor  # the policy that has done best; is evaluated and saved
    f_adam: AdamState
    g_adam: AdamState
    actor_adam: AdamState
    critic_adam: AdamState
    seen: TargetRange
    assessment: Assessment


class Coefficients(NamedTuple):
    """The numbers that an update reads, for all members or one for each (algo/coefficients.py)."""

    gamma: Coefficient  # arrives as the discount of a batch
    actor_lr: Coefficient
    critic_lr: Coefficient
    encoder_lr: Coefficient
    target_noise: Coefficient
    target_noise_clip: Coefficient


class TD7Trace(NamedTuple):
    """What each step of one update produced, in the paper's letters; valid until the next update."""

    zs: Tensor  # (M, B, embedding), step 5: of s, by the encoder that learns
    zsa: Tensor  # (M, B, embedding), step 5: the prediction of zs2
    zs2: Tensor  # (M, B, embedding), step 5: of s2
    encoder_loss: Tensor  # (M,), step 6
    a2: Tensor  # (M, B, action_size), step 7
    q2: Tensor  # (M, C, B), step 8
    v2: Tensor  # (M, B), step 9: the smallest, inside the limits
    y: Tensor  # (M, B), step 10
    q: Tensor  # (M, C, B), step 11
    td: Tensor  # (M, C, B), q - y
    loss: Tensor  # (M, C, B), step 12
    pi: Tensor | None = None  # (M, B, action_size), step 14; None unless the actor was updated
    q_pi: Tensor | None = None  # (M, B), step 14
    actor_loss: Tensor | None = None  # (M,), step 14

    @property
    def losses(self) -> dict[str, Tensor]:
        """(M,) each: steps 12 and 6; and what step 14 minimises, if it was taken."""
        losses = {"critic": self.loss.mean(-1).sum(-1), "encoder": self.encoder_loss}
        return losses if self.actor_loss is None else {**losses, "actor": self.actor_loss}


def init(
    spec: Spec, cfg: TD7Config, seeds: Sequence[int], device: str = "cpu", dtype: torch.dtype = torch.float32
) -> TD7Agent:
    """Creates networks and optimisers, one member per seed."""
    members = len(seeds)
    # Step 2: the encoder and the actor; what is fixed, the targets and the checkpoint start as copies.
    actor_seeds, pair_seeds = ([derive(seed, purpose) for seed in seeds] for purpose in ("actor", "encoder"))
    policy = EmbeddingActor((network := embedding_actor(spec, cfg)), initial(network, actor_seeds, dtype).to(device))
    f = policy.f.copy()
    g = Stack((network := pair_encoder(spec, cfg)), initial(network, pair_seeds, dtype).to(device))
    # Step 3: the critics, each with an initialisation of its own.
    critic_seeds = [derive(seed, "critic", which) for seed in seeds for which in range(cfg.critics)]
    network = embedding_critic(spec, cfg)
    critic = Critic(network, initial(network, critic_seeds, dtype).to(device), members)

    for_f, for_g, for_actor, for_critic = (adam_init(stack.flat, (members,)) for stack in (f, g, policy.actor, critic))
    start = torch.zeros(members, device=device, dtype=dtype)
    none = torch.zeros(members, device=device, dtype=torch.float64)
    return TD7Agent(
        *(f, g, policy, g.copy(), policy.copy(), g.copy(), critic, critic.copy(), policy.copy()),
        *(for_f, for_g, for_actor, for_critic),
        TargetRange(start + HUGE, start - HUGE, start.clone(), start.clone()),
        Assessment(none.clone(), none.clone(), none + HUGE, none - HUGE, none.clone()),
    )


def update(
    agent: TD7Agent, batch: Batch, draws: Draws, cfg: TD7Config, coefficients: Coefficients, update_actor: bool
) -> TD7Trace:
    """Performs one iteration of the paper's loop, steps 4 to 14; step 14 only if update_actor."""
    # Step 4: a batch of transitions, chosen by their errors (LAP), which needs no importance weights.
    s, a, r, s2, terminated, discount, _, _ = batch
    policy, target, seen = agent.policy, agent.policy_target, agent.seen

    with torch.no_grad():
        zs2 = agent.f.forward(s2)  # (M, B, embedding)
    # Step 5: the embedding of the state, and what it and the action predict of the next state's.
    zs = agent.f.forward(s)
    zsa = agent.g.forward(torch.cat([zs, a], dim=-1))
    # Step 6: mean squared error of the prediction, one Adam step for the encoder.
    encoder_loss = (zsa - zs2).square().mean(dim=(1, 2))  # (M,)
    for_f, for_g = gradients(encoder_loss.sum(), agent.f, agent.g)
    adam_step(agent.f_adam, agent.f.flat, for_f, coefficients.encoder_lr)
    adam_step(agent.g_adam, agent.g.flat, for_g, coefficients.encoder_lr)

    with torch.no_grad():
        # Step 7: the target actor's action in the next state, with clipped noise, clipped to a valid action.
        zs2_target = target.f.forward(s2)
        pi2 = target.act(s2, zs2_target)
        sigma, clip = rowwise(coefficients.target_noise, pi2), rowwise(coefficients.target_noise_clip, pi2)
        a2 = (pi2 + (sigma * draws.target_noise).clamp(-clip, clip)).clamp(-1, 1)
        # Step 8: the target critics' values of it.
        q2 = values(agent.critic_target, agent.g_target, s2, zs2_target, a2)  # (M, C, B)
        # Step 9: the smallest of them, inside the range of the targets that were seen until the last copy.
        v2 = q2.amin(dim=1).clamp(seen.low.unsqueeze(1), seen.high.unsqueeze(1))  # (M, B)
        # Step 10: one target for all critics; it widens the range that is seen.
        y = r + discount * (1 - terminated) * v2
        seen.lowest.copy_(seen.lowest.minimum(y.amin(dim=1)))
        seen.highest.copy_(seen.highest.maximum(y.amax(dim=1)))
        fixed_zs = policy.f.forward(s)

    # Step 11: the critics' values of the action that was taken.
    q = values(agent.critic, agent.g_fixed, s, fixed_zs, a)  # (M, C, B)
    # Step 12: half the square of small errors, the size of large ones, as LAP needs it; summed over critics (and
    # members, whose gradients are independent).
    td = q - y.unsqueeze(1)
    loss = torch.where(td.abs() < 1, td.square() / 2, td.abs())  # (M, C, B)
    gradient = agent.critic.gradient(loss.mean(dim=-1).sum())
    # Step 13: one Adam step for all critics. The engine hands td to LAP.
    adam_step(agent.critic_adam, agent.critic.flat, gradient, coefficients.critic_lr)
    parts = (zs, zsa, zs2, encoder_loss, a2, q2, v2, y, q, td, loss)
    trace = TD7Trace(*(part.detach() for part in parts))
    return improve(agent, s, fixed_zs, trace, coefficients) if update_actor else trace


def improve(agent: TD7Agent, s: Tensor, zs: Tensor, trace: TD7Trace, coefficients: Coefficients) -> TD7Trace:
    """The second half of an update: the actor."""
    # Step 14: gradient ascent of the actor on the mean of the critics; its action also reaches them through g.
    pi = agent.policy.act(s, zs)
    q_pi = values(agent.critic, agent.g_fixed, s, zs, pi).mean(dim=1)  # (M, B)
    actor_loss = -q_pi.mean(dim=-1)  # (M,)
    gradient = agent.policy.actor.gradient(actor_loss.sum())
    adam_step(agent.actor_adam, agent.policy.actor.flat, gradient, coefficients.actor_lr)
    return trace._replace(pi=pi.detach(), q_pi=q_pi.detach(), actor_loss=actor_loss.detach())


def values(critic: Critic, g: Stack, s: Tensor, zs: Tensor, a: Tensor) -> Tensor:
    """The critics' values (M, C, B) of actions, which they see beside both embeddings."""
    zsa = g.forward(torch.cat([zs, a], dim=-1))
    return critic(s, torch.cat([a, zsa, zs], dim=-1))


def copy_hard(agent: TD7Agent, cfg: TD7Config) -> None:
    """Step 15, after every 250 updates: the targets become what is online, and then the fixed encoder what learns.

    The highest priority, which new transitions get, is recomputed then, too.
    """
    agent.critic_target.flat.copy_(agent.critic.flat)
    agent.policy_target.flat.copy_(agent.policy.flat)
    agent.g_target.flat.copy_(agent.g_fixed.flat)
    agent.policy.f.flat.copy_(agent.f.flat)
    agent.g_fixed.flat.copy_(agent.g.flat)
    agent.seen.low.copy_(agent.seen.lowest)
    agent.seen.high.copy_(agent.seen.highest)


def hear(agent: TD7Agent, cfg: TD7Config, member: int, episode: EpisodeResult, updates: int) -> int:
    """Step 16, when an episode ends: the policy is assessed by its lowest return, and learns when that is over.

    If it does worse than the checkpoint the assessment is over at once, otherwise after some episodes, and then the
    policy becomes the checkpoint. Returns the steps of the assessment, whose updates are due now.
    """
    episodes, steps, lowest, best, forgiven = (tensor[member] for tensor in agent.assessment)
    if updates > cfg.assess_after and not forgiven:
        best.mul_(FORGIVEN)
        forgiven.fill_(1)
    steps.add_(episode.length)
    if episode.bad_values:  # it was cut off, so its return says nothing
        return 0
    episodes.add_(1)
    lowest.clamp_(max=episode.total_reward)
    is_better = bool(lowest >= best)
    if is_better and episodes < (cfg.assess_episodes if forgiven else 1):
        return 0
    if is_better:
        best.copy_(lowest)
        agent.checkpoint.flat[member].copy_(agent.policy.flat[member])
    due = int(steps)
    episodes.zero_()
    steps.zero_()
    lowest.fill_(HUGE)
    return due


def coefficients_of(cfg: TD7Config) -> Coefficients:
    """The same numbers for all members."""
    return Coefficients(*(getattr(cfg, name) for name in Coefficients._fields))


def draws_of(spec: Spec, cfg: TD7Config) -> Draws:
    """The shapes of what an update draws, for one member."""
    return Draws((cfg.batch_size, spec.action_size))  # type: ignore[arg-type]


def parameters(spec: Spec, cfg: TD7Config) -> int:
    """The number of parameters that one member learns: encoder, actor and critics, without copies."""
    critics = cfg.critics * embedding_critic(spec, cfg).size
    return embedding_actor(spec, cfg).size + pair_encoder(spec, cfg).size + critics
