"""Compares TD7 with the authors' public code, which is not here: `python experiments/against_td7.py FOLDER`.

FOLDER holds their TD7.py and buffer.py. Both make the same updates in float64, from the same weights and transitions:
they choose the transitions by their own LAP, from uniform numbers that are the same, and draw the same noise. Prints
the largest relative difference of any weight, value limit and priority.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from t3d.algo.learner import Learner
from t3d.algo.rules import RULES
from t3d.config import Config, TD7Config
from t3d.data.memory import Memory
from t3d.policy.spec import Part, Spec
from t3d.types import Rollout

OBSERVATION, ACTION, ROWS = 17, 6, 3000  # as HalfCheetah's


def main() -> None:
    """Prints the largest relative difference."""
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("folder", type=Path)
    args.add_argument("--updates", type=int, default=500)
    args.add_argument("--width", type=int, default=256, help="of all layers and embeddings")
    given = args.parse_args()
    sys.path.insert(0, str(given.folder))
    torch.set_default_dtype(torch.float64)
    their_module, width = importlib.import_module("TD7"), given.width
    sizes = dict.fromkeys(("zs_dim", "enc_hdim", "critic_hdim", "actor_hdim"), width)
    theirs = their_module.Agent(OBSERVATION, ACTION, 1.0, hp=their_module.Hyperparameters(**sizes))
    learner, memory = ours(theirs, width)
    uniform, draw = Handed(memory.sampler._streams.uniform), Handed(learner.draw)
    memory.sampler._streams.uniform = uniform  # type: ignore[method-assign]
    learner.draw = draw  # type: ignore[method-assign]
    real_float, real_rand, real_randn = torch.float, torch.rand, torch.randn_like
    torch.float = torch.float64  # type: ignore[misc]  # which their buffer asks for
    torch.rand = lambda size, device=None: uniform.last[0].clone()  # type: ignore[assignment]
    torch.randn_like = lambda like: draw.last.target_noise[0].clone()  # type: ignore[assignment]
    for number in range(1, given.updates + 1):
        learner.run(1)
        theirs.train()
        same_rows = np.array_equal(memory.last_index[0].numpy(), theirs.replay_buffer.ind)
        if not same_rows:
            raise SystemExit(f"update {number} has chosen other transitions")
        if number % 100 == 0:
            print(f"{number} updates: {difference(learner, memory, theirs):.2e}", flush=True)
    torch.float, torch.rand, torch.randn_like = real_float, real_rand, real_randn  # type: ignore[misc]


class Handed:
    """Remembers what a function has returned last."""

    def __init__(self, function: Any) -> None:
        self.function, self.last = function, None

    def __call__(self) -> Any:
        self.last = self.function()
        return self.last


class Remembering(Memory):
    """Knows which rows it has chosen last."""

    def sample(self) -> Any:
        batch = super().sample()
        self.last_index = batch.index.clone()
        return batch._replace(**{name: value.double() for name, value in batch._asdict().items() if name != "index"})


def ours(theirs: Any, width: int) -> tuple[Learner, Remembering]:
    """Our learner with their weights, and both replays filled alike."""
    spec = Spec((Part((), (OBSERVATION,), 0, OBSERVATION),), (ACTION,), -np.ones(ACTION), np.ones(ACTION))
    networks = TD7Config(
        embedding=width, encoder_hidden=width, actor_hidden=(width, width), critic_hidden=(width, width)
    )
    cfg = Config(algo="td7", td7=networks, total_steps=ROWS, random_steps=0)
    memory, rng = Remembering(spec, cfg, "cpu"), np.random.default_rng(0)
    s, s2 = rng.normal(size=(2, ROWS, OBSERVATION)).astype(np.float32)
    a = rng.uniform(-1, 1, (ROWS, ACTION)).astype(np.float32)
    r, terminated = (5 * rng.normal(size=ROWS)).astype(np.float32), rng.random(ROWS) < 0.1
    rows = np.concatenate([s, a, r[:, None], terminated[:, None], s2], axis=1, dtype=np.float32)
    memory.add(Rollout(0, rows, np.full((ROWS, 4), -1, np.int32), OBSERVATION, [], []))
    for row in range(ROWS):
        theirs.replay_buffer.add(s[row], a[row], s2[row], r[row], float(terminated[row]))
    settings = cfg.settings_of()
    memory.sampler._gamma = memory.sampler._gamma.double().fill_(settings.gamma)
    memory.sampler.tree.levels[-1] = memory.sampler.tree.levels[-1].double()
    memory.sampler.highest = memory.sampler.highest.double()
    memory.sampler.feedback = exact_feedback(memory.sampler)
    learner = Learner(spec, settings, (0,), dtype=torch.float64, rule=RULES["td7"], source=memory)
    agent = learner.agent
    for network, weights in zip(
        (agent.f, agent.policy.f, agent.policy_target.f), [of_state(theirs.encoder)] * 3, strict=True
    ):
        network.flat.copy_(weights)
    for network in (agent.g, agent.g_fixed, agent.g_target):
        network.flat.copy_(of_pair(theirs.encoder))
    for policy in (agent.policy, agent.policy_target):
        policy.actor.flat.copy_(of_actor(theirs.actor))
    for critic in (agent.critic, agent.critic_target):
        critic.flat.copy_(of_critics(theirs.critic))
    return learner, memory


def exact_feedback(sampler: Any) -> Any:
    """Our feedback in float64, and of a row that was drawn twice their newest priority instead of the larger one.

    So both choose the same transitions.
    """

    def feedback(index: torch.Tensor, td: torch.Tensor) -> None:
        priority = td.abs().amax(dim=1).clamp(min=1) ** sampler.settings.priority_exponent
        last = dict(zip(index[0].tolist(), priority[0].tolist(), strict=True))
        sampler.tree.set(sampler._member, torch.tensor([[*last]]), torch.tensor([[*last.values()]]))
        sampler.highest.copy_(sampler.highest.maximum(priority.amax(dim=1)))

    return feedback


def flat(*layers: Any) -> torch.Tensor:
    return torch.cat([part for layer in layers for part in (layer.weight.detach().T.flatten(), layer.bias.detach())])


def of_state(encoder: Any) -> torch.Tensor:
    return flat(encoder.zs1, encoder.zs2, encoder.zs3)


def of_pair(encoder: Any) -> torch.Tensor:
    return flat(encoder.zsa1, encoder.zsa2, encoder.zsa3)


def of_actor(actor: Any) -> torch.Tensor:
    return flat(actor.l0, actor.l1, actor.l2, actor.l3)


def of_critics(critic: Any) -> torch.Tensor:
    return torch.stack(
        [flat(critic.q01, critic.q1, critic.q2, critic.q3), flat(critic.q02, critic.q4, critic.q5, critic.q6)]
    )


def difference(learner: Learner, memory: Any, theirs: Any) -> float:
    """The largest difference of any number, over the largest number of its tensor."""
    agent = learner.agent
    encoders = (theirs.encoder, theirs.fixed_encoder, theirs.fixed_encoder_target)
    pairs = [
        *zip((agent.f, agent.policy.f, agent.policy_target.f), map(of_state, encoders), strict=True),
        *zip((agent.g, agent.g_fixed, agent.g_target), map(of_pair, encoders), strict=True),
        (agent.policy.actor, of_actor(theirs.actor)),
        (agent.policy_target.actor, of_actor(theirs.actor_target)),
        (agent.critic, of_critics(theirs.critic)),
        (agent.critic_target, of_critics(theirs.critic_target)),
    ]
    tensors = [(stack.flat, weights) for stack, weights in pairs]
    limits = [[theirs.min, theirs.max], [theirs.min_target, theirs.max_target]]
    tensors += [
        (torch.cat(agent.seen[start : start + 2]), torch.tensor(of_theirs))
        for start, of_theirs in ((0, limits[0]), (2, limits[1]))
    ]
    tensors.append((memory.sampler.tree.priorities[0], theirs.replay_buffer.priority[:ROWS]))
    tensors.append((memory.sampler.highest, torch.tensor([float(theirs.replay_buffer.max_priority)])))
    return max(
        float((mine - other.view_as(mine)).abs().max() / other.abs().max().clamp(min=1e-12)) for mine, other in tensors
    )


if __name__ == "__main__":
    main()
