"""The readable update in CUDA graphs: captured equals eager, for every rule and every architecture there is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_td3 import CFG as ORACLE_CFG
from test_td3 import MUTATIONS, mutated
from torch import Tensor

import helpers
import t3d
from rules_in_tests import ALL_NETWORKS, ALL_RULES, CHOICES, settings_for
from t3d.algo.engines.capture import Capture
from t3d.algo.engines.verify import FixedBatch, exact_products, mismatch
from t3d.algo.learner import Learner
from t3d.algo.networks import named_tensors
from t3d.algo.rules import TD3, TD7, Rule
from t3d.algo.td3 import coefficients_of
from t3d.config import Config, RuleConfig, TD3Config, merge
from t3d.data.memory import Memory
from t3d.events import End, Note, Resumed, Start
from t3d.store.checkpoint import newest
from t3d.types import Batch, Draws

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")

SPEC = helpers.make_spec()
CFG = TD3Config(batch_size=32, actor_hidden=(32, 32), critic_hidden=(32, 32))


def each(draws: Draws, change: Callable[[Tensor], Tensor]) -> Draws:
    """Draws with every tensor changed; some have none."""
    changed: list[Any] = [None if part is None else change(part) for part in draws]
    return Draws(*changed)


class Batches(FixedBatch):
    """One batch after the other in float64 on the GPU, which a graph cannot record; draws come with them."""

    capture_safe = False

    def __init__(self, cfg: RuleConfig, members: int, count: int) -> None:
        self.all = [
            (Batch(*(part.cuda() for part in batch)), each(draws, Tensor.cuda))
            for batch, draws in helpers.random_batches(SPEC, cfg, members, count)
        ]
        super().__init__(self.all[0][0])
        self.draws = each(self.all[0][1], Tensor.clone)
        self.number = 0

    def sample(self) -> Batch:
        batch, draws = self.all[self.number % len(self.all)]
        for place, part in zip(self.draws, draws, strict=True):
            if place is not None and part is not None:
                place.copy_(part)
        self.number += 1
        return batch


def captured(batches: Batches, cfg: RuleConfig, members: int, rule: Rule) -> Learner:
    learner = Learner(SPEC, cfg, range(members), "cuda", torch.float64, engine="capture", rule=rule, source=batches)
    learner.draw = lambda: batches.draws  # type: ignore[method-assign]
    learner.prepare()
    return learner


def largest_difference(rule: Rule, cfg: RuleConfig, members: int = 2, truth: Rule | None = None) -> float:
    """Over everything an update changes, after updates in any number and phase; what is captured against eager."""
    batches = Batches(cfg, members, 20)
    learner = captured(batches, cfg, members, rule)
    eager = Learner(SPEC, cfg, range(members), "cuda", torch.float64, rule=truth or rule)
    batches.number = 0
    for n in (1, 2, 5, 3, 9):
        trace = learner.run(n)
        if any(value is not None and value.requires_grad for value in trace):
            return float("inf")  # a gradient could flow where the paper allows none
    for batch, draws in batches.all:
        eager.update(batch, draws)
    assert learner.updates == eager.updates == 20
    pairs = zip(named_tensors(learner.agent), named_tensors(eager.agent), strict=True)
    return max(float((ours - theirs).abs().nan_to_num(1e9).max()) for (_, ours), (_, theirs) in pairs)


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("members", [1, 3])
def test_captured_equals_eager_for_every_rule(rule: str, members: int) -> None:
    assert largest_difference(ALL_RULES[rule], settings_for(rule, CFG), members) < 1e-10


@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS)
def test_captured_equals_eager_for_every_architecture(kind: str, activation: str) -> None:
    networks: dict[str, Any] = {f"{owner}_network": kind for owner in ("actor", "critic")}
    networks |= {f"{owner}_activation": activation for owner in ("actor", "critic")}
    assert largest_difference(TD3, replace(CFG, **networks)) < 1e-10


@pytest.mark.parametrize("choice", CHOICES)
def test_captured_equals_eager_for_every_choice(choice: str) -> None:
    cfg = replace(CFG, **CHOICES[choice])
    assert largest_difference(TD3, cfg) < 1e-10
    assert mismatch("capture", SPEC, cfg, range(2), "cuda") == ""


@pytest.mark.parametrize("rule", ALL_RULES)
@pytest.mark.parametrize("network", ["mlp", "residual"])
def test_the_proof_passes_for_what_is_captured(rule: str, network: str) -> None:
    cfg = replace(CFG, actor_network=network, critic_network=network, batch_size=64)
    assert mismatch("capture", SPEC, settings_for(rule, cfg), range(2), "cuda", ALL_RULES[rule]) == ""


# A traced update keeps no gradient of y, and takes those of the critics' parameters alone.
SEEN = [mutation for mutation in MUTATIONS if mutation[0] != "9: y with gradient"]


@pytest.mark.parametrize(("what", "right", "wrong"), SEEN, ids=[what for what, _, _ in SEEN])
def test_a_broken_step_is_seen_when_captured(what: str, right: str, wrong: str) -> None:
    try:
        found = largest_difference(TD3._replace(update=mutated(right, wrong)), ORACLE_CFG, truth=TD3)
    except RuntimeError as error:  # a gradient where none can flow
        assert "grad" in str(error), error
        return
    assert found > 1e-8


def test_the_unbroken_text_is_equal() -> None:
    assert largest_difference(TD3._replace(update=mutated("td = q - y", "td = q - y")), ORACLE_CFG, truth=TD3) < 1e-10


def test_blocks_and_rare_operations_are_the_updates_one_by_one() -> None:
    """Whole blocks, with sampling inside the graph, over two periodic operations."""
    rule, made = ALL_RULES["tracking"], []
    batch = Batches(CFG, 2, 1).batch
    for engine in ("eager", "capture"):
        learner = Learner(
            SPEC, CFG, range(2), "cuda", torch.float64, engine=engine, rule=rule, source=FixedBatch(batch)
        )
        if engine == "capture":
            learner.prepare()
            assert isinstance(learner.engine, Capture) and {len(phases) for phases in learner.engine._graphs} == {1, 8}
        for n in (3, 300, 207):
            learner.run(n)
        made.append(dict(named_tensors(learner.agent)))
        assert learner.updates == 510 and (made[-1]["limit"] < 1e6).all(), "a periodic operation has happened"
    for name, tensor in made[0].items():
        torch.testing.assert_close(made[1][name], tensor, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("rest", [[], [1], [0, 2]])
def test_members_rest_in_graphs_too(rest: list[int]) -> None:
    """With sampling by errors in the graph: who rests stays as it is to the last bit, others learn what they would."""
    changes = {
        "algo": "td7",
        "seeds": [3, 1, 4],
        "total_steps": 600,
        "random_steps": 0,
        "td7": asdict(settings_for("td7", CFG)),
    }
    cfg, made = merge(Config(), changes), []
    for engine in ("eager", "capture"):
        memory = Memory(SPEC, cfg, "cuda")
        memory.replay.rows.copy_(torch.rand(memory.replay.rows.shape, generator=torch.Generator().manual_seed(1)))
        memory.replay.set_added([600] * 3)
        memory.sampler.added(*((member, 0, 600) for member in range(3)))
        learner = Learner(SPEC, cfg.td7, cfg.seeds, "cuda", engine=engine, rule=TD7, source=memory)
        with exact_products():
            if engine == "capture":
                learner.prepare()
            learner.run(20)
            before = {name: tensor.clone() for name, tensor in named_tensors(learner.agent)}
            learner.run(300, rest)
        for name, tensor in named_tensors(learner.agent):
            stacks = zip(tensor.view(3, -1), before[name].view(3, -1), strict=True) if tensor.ndim else ()
            still = [m for m, (now, then) in enumerate(stacks) if torch.equal(now, then)]
            assert not tensor.ndim or {*rest} <= {*still}, name
        assert learner.made == [20 if member in rest else 320 for member in range(3)]
        made.append({"critic": learner.agent.critic.flat.clone(), "f": learner.agent.f.flat.clone()})
    for name, tensor in made[0].items():
        torch.testing.assert_close(made[1][name], tensor, rtol=1e-2, atol=1e-2)


def test_a_coefficient_that_moves_is_followed_and_members_have_their_own() -> None:
    learners = []
    for engine in ("eager", "capture"):
        critic_lr = torch.tensor([1e-3, 1e-4], device="cuda")
        numbers = coefficients_of(CFG)._replace(critic_lr=critic_lr, tau=torch.tensor([0.005, 0.1], device="cuda"))
        batch = Batch(*(part.float() if part.is_floating_point() else part for part in Batches(CFG, 2, 1).batch))
        learner = Learner(SPEC, CFG, range(2), "cuda", engine=engine, coefficients=numbers, source=FixedBatch(batch))
        if engine != "eager":
            learner.prepare()
        before = learner.agent.critic.flat.clone()
        with exact_products():
            learner.run(10)
            moved = (learner.agent.critic.flat - before).abs().view(2, -1).amax(1)
            critic_lr.zero_()
            still = learner.agent.critic.flat.clone()
            learner.run(10)
        assert moved[0] > 5 * moved[1] > 0 and torch.equal(still, learner.agent.critic.flat), engine
        learners.append(dict(named_tensors(learner.agent)))
    for other in learners[1:]:
        for name, tensor in learners[0].items():
            torch.testing.assert_close(other[name], tensor, rtol=1e-3, atol=1e-4)


def test_a_run_with_residual_networks_is_captured_and_goes_on(tmp_path: Path) -> None:
    networks = {"actor_network": "residual", "critic_network": "layer_norm", "critic_activation": "elu"}
    cfg = helpers.small_config(device="cuda", seeds=[0, 1], td3=networks, run={"root": str(tmp_path), "name": "gpu"})
    for event in t3d.train(cfg):
        if isinstance(event, Start):
            assert event.config["engine"] == "capture"
            assert event.engine_reason == ""
        if event.step >= 200:
            break
    events = list(t3d.resume(tmp_path / "gpu"))
    assert isinstance(events[0], Resumed) and events[0].config["engine"] == "capture" and events[0].notes == []
    assert isinstance(events[-1], End) and (events[-1].updates, events[-1].reason) == (200, "finished")


def critics_of_sweep(root: Path, engine: str, device: str = "cuda") -> np.ndarray[Any, Any]:
    """What the members of a sweep have learned after twenty updates: (values, seeds, parameters)."""
    cfg = helpers.small_config(
        device=device,
        engine=engine,
        seeds=[0, 1],
        sweep=["td3.gamma=0.5,0.99", "td3.critic_lr=0.001,0.01"],
        scale_rewards=True,
        replay={"n_step": 3},
        total_steps=120,
        run={"root": str(root), "name": engine},
    )
    start, *events = t3d.train(cfg)
    assert isinstance(start, Start) and start.config["engine"] == engine
    assert not [event for event in events if isinstance(event, Note) and "is not used" in event.text]
    assert isinstance(events[-1], End) and (events[-1].reason, events[-1].updates) == ("finished", 20)
    checkpoint, _ = newest(root / engine / "checkpoints")
    assert checkpoint is not None
    critics: np.ndarray[Any, Any] = checkpoint.state()["learner"]["critic"].reshape(4, 2, -1)
    return critics


def test_a_whole_run_with_a_sweep_gives_each_member_what_eager_gives_it(tmp_path: Path) -> None:
    ours, eager = critics_of_sweep(tmp_path, "capture"), critics_of_sweep(tmp_path, "eager")
    for value in range(4):
        distances = np.abs(ours[value] - eager).mean(axis=-1)  # (values, seeds): to each member with the same seed
        others = np.delete(distances, value, axis=0)
        assert (10 * distances[value] < others.min(axis=0)).all(), (value, distances)
