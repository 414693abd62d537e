"""Learning rates that are set while a run learns: each engine computes as if it had begun with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from helpers import make_spec, random_batches
from t3d.algo.engines import ENGINES
from t3d.algo.engines.verify import FixedBatch
from t3d.algo.learner import Learner
from t3d.algo.rules import TD3, coefficients_of_members
from t3d.config import Config, TD3Config, merge
from t3d.errors import UserError

SPEC, SEEDS = make_spec(), [1, 2]
CFG = TD3Config(actor_hidden=(16,), critic_hidden=(16,), batch_size=8)
NEW: dict[str, Any] = {"actor_lr": 2e-3, "critic_lr": 5e-3}
HERE = [
    "eager",
    "fused",
    pytest.param("capture", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU")),
]


def learner_of(engine: str, cfg: TD3Config = CFG, coefficients: Any = None) -> Learner:
    device = ENGINES[engine].devices[-1] if engine == "capture" else "cpu"
    batch, _ = next(random_batches(SPEC, cfg, len(SEEDS), 1, dtype=torch.float32))
    source = FixedBatch(type(batch)(*(part.to(device) for part in batch)))
    learner = Learner(SPEC, cfg, SEEDS, device, engine=engine, coefficients=coefficients, source=source)
    learner.prepare()
    return learner


def assert_same(state: dict[str, Any], other: dict[str, Any]) -> None:
    arrays = {name for name, value in other.items() if isinstance(value, np.ndarray)}
    assert "actor" in arrays
    for name in arrays:
        np.testing.assert_array_equal(state[name], other[name], err_msg=name)


@pytest.mark.parametrize("engine", HERE)
def test_updates_go_on_as_with_a_configuration_of_these_rates(engine: str) -> None:
    changed, truth = learner_of(engine), learner_of(engine, replace(CFG, **NEW))
    changed.run(5)
    truth.restore(changed.state())
    changed.set_rates(**NEW)
    changed.run(4)
    unchanged = learner_of(engine)
    unchanged.restore(truth.state())
    unchanged.run(4)
    truth.run(4)
    assert_same(changed.state(), truth.state())
    assert not np.array_equal(changed.state()["actor"], unchanged.state()["actor"])
    assert not np.array_equal(changed.state()["critic"], unchanged.state()["critic"])


@pytest.mark.parametrize("engine", HERE)
def test_a_rate_can_be_set_again_and_again_and_is_saved(engine: str) -> None:
    learner = learner_of(engine)
    for rate in (1e-3, 1e-4, 2e-3):
        learner.set_rates(actor_lr=rate)
        learner.run(2)
    resumed = learner_of(engine)
    resumed.restore(learner.state())
    learner.run(3)
    resumed.run(3)
    assert_same(resumed.state(), learner.state())
    assert resumed.rates == learner.rates == {"actor_lr": 2e-3}


def test_a_rate_that_members_differ_in_is_set_for_all() -> None:
    swept = merge(Config(), {"device": "cpu", "seeds": [1], "sweep": ["td3.critic_lr=0.001,0.01"]})
    coefficients = coefficients_of_members(swept, TD3)
    learner = learner_of("eager", coefficients=coefficients)
    learner.set_rates(critic_lr=0.005)
    assert learner.coefficients.critic_lr.tolist() == [0.005, 0.005]


@pytest.mark.parametrize(
    ("rates", "why"),
    [
        ({"tau": 0.1}, "no learning rate tau"),
        ({"actor_lr": 2.0}, "td3.actor_lr=2.0 is out of range"),
        ({"critic_lr": float("nan")}, "td3.critic_lr=nan is out of range"),
    ],
)
def test_what_is_no_learning_rate_is_refused(rates: dict[str, float], why: str) -> None:
    learner = learner_of("eager")
    with pytest.raises(UserError, match=why):
        learner.set_rates(**rates)
    assert not learner.rates
