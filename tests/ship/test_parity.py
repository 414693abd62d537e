"""R18: torch, ONNX, C and a reloaded checkpoint act as the policy does, on 10,000 observations with extremes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
import t3d
from rules_in_tests import ALL_NETWORKS, NETWORKS
from shipped_policies import made, of_images, of_vectors, torch_actions, vector_spec
from t3d.config.networks import architecture
from t3d.errors import UserError
from t3d.policy.acting import SavedPolicy
from t3d.policy.observations import ABSURD
from t3d.policy.spec import Part, Spec
from t3d.ship import export
from t3d.ship.c_source import c_source
from t3d.ship.export import TOLERANCE, compiled, compiler, export_policy, largest_difference, observations

NAMES = [f"{kind}-{activation}" for kind, activation in ALL_NETWORKS]
WITH_COMPILER = pytest.mark.skipif(compiler() is None, reason="there is no C compiler here")
WIDE = pytest.param((256, 256), marks=pytest.mark.slow)


@pytest.mark.parametrize("hidden", [(32, 32), WIDE], ids=["32-32", "256-256"])
@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS, ids=NAMES)
def test_torch(kind: str, activation: str, hidden: tuple[int, int]) -> None:
    for scaled in (False, True):
        policy = of_vectors(kind, activation, hidden, scaled)
        assert largest_difference(policy, torch_actions(policy)) <= TOLERANCE


@pytest.mark.parametrize("hidden", [(32, 32), WIDE], ids=["32-32", "256-256"])
@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS, ids=NAMES)
def test_onnx(tmp_path: Path, kind: str, activation: str, hidden: tuple[int, int]) -> None:
    pytest.importorskip("onnxruntime")
    for scaled in (False, True):
        policy, file = of_vectors(kind, activation, hidden, scaled), tmp_path / f"{scaled}.onnx"
        said = export_policy(policy, file, "onnx", {}).difference
        assert said == largest_difference(policy, t3d.load_policy(file).actions) <= TOLERANCE


@WITH_COMPILER
@pytest.mark.parametrize("hidden", [(32, 32), WIDE], ids=["32-32", "256-256"])
@pytest.mark.parametrize(("kind", "activation"), NETWORKS, ids=NAMES)
def test_c(kind: str, activation: str, hidden: tuple[int, int]) -> None:
    for scaled in (False, True):
        policy = of_vectors(kind, activation, hidden, scaled)
        with compiled(c_source(policy.snapshot, policy.spec, []), policy.spec) as actions:
            assert largest_difference(policy, actions) <= TOLERANCE


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("kind", "activation"), [("mlp", "relu"), ("layer_norm", "elu"), ("residual", "silu")])
def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, activation: str, count: int) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export, "OBSERVATIONS", count)
    policy, file = of_images(kind, activation), tmp_path / "policy.onnx"
    export_policy(policy, file, "onnx", {})
    for other in (t3d.load_policy(file).actions, torch_actions(policy)):
        assert largest_difference(policy, other) <= TOLERANCE


RUNS: dict[str, dict[str, Any]] = {
    "mlp, normalised": {"normalise_observations": True},
    "layer_norm": {"td3": {"actor_network": "layer_norm", "actor_activation": "gelu"}},
    "residual": {"td3": {"actor_network": "residual"}},
    "images": {
        "env": {"id": "image_worlds:Dot", "frame_stack": 2},
        "td3": {"encoder_channels": 4, "encoder_features": 6, "actor_hidden": [8], "critic_hidden": [8]},
    },
}


@pytest.mark.parametrize("run", RUNS)
def test_a_reloaded_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: str) -> None:
    monkeypatch.setattr(export, "OBSERVATIONS", 1000 if run == "images" else 10_000)
    cfg = helpers.small_config(run={"root": str(tmp_path), "name": "run"}, seeds=[4, 5])
    list(t3d.train(t3d.merge(cfg, RUNS[run])))
    newest = max((tmp_path / "run" / "checkpoints").glob("0*"))
    reloaded, last = t3d.load_policy(newest, seed=5), t3d.load_policy(tmp_path / "run" / "last" / "seed-5")
    assert isinstance(reloaded, SavedPolicy) and isinstance(last, SavedPolicy)
    assert reloaded.about["step"] == last.about["step"] and reloaded.sha256 == last.sha256
    assert largest_difference(last, reloaded.actions) == 0
    assert largest_difference(reloaded, torch_actions(reloaded)) <= TOLERANCE
    assert t3d.load_policy(newest, seed="seed-4").sha256 != last.sha256


SPACES: dict[str, Spec] = {
    "integers": vector_spec()._replace(
        action_low=np.array([0.0, -3, 5]), action_high=np.array([255.0, 4, 6]), action_dtype="int16"
    ),
    "doubles, whose bounds are no floats": vector_spec()._replace(
        action_low=np.array([-1 / 3, 0.1, 7]), action_high=np.array([1 / 3, 0.7, 7.1]), action_dtype="float64"
    ),
    "a table of actions": vector_spec(5, 6)._replace(action_shape=(2, 3)),
    "one number": vector_spec(5, 1)._replace(action_shape=()),
    "parts of a dictionary": vector_spec(5)._replace(
        observation=(Part(("place",), (2,), 0, 2), Part(("choice",), (), 2, 5, first_choice=-1))
    ),
    "several choices": vector_spec(5)._replace(observation=(Part((), (2,), 0, 5, first_choice=(4, 0), counts=(2, 3)),)),
}


@pytest.mark.parametrize("name", SPACES)
def test_other_spaces(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime")
    spec = SPACES[name]
    policy = made(architecture("mlp", (5, 16, spec.action_size), "relu"), spec)
    for kind in ("onnx", "c") if compiler() else ("onnx",):
        exported = export_policy(policy, tmp_path / f"policy.{kind}", kind, {})
        assert exported.difference is not None and exported.difference <= TOLERANCE
    loaded = t3d.load_policy(tmp_path / "policy.onnx")
    seen: Any = {"place": [0.5, -1.0], "choice": 1} if "dictionary" in name else np.linspace(-1, 1, 5)
    seen = np.array([5, 1]) if "choices" in name else seen
    one, other = policy(seen), loaded(seen)
    assert one.shape == other.shape == spec.action_shape and one.dtype == other.dtype == np.dtype(spec.action_dtype)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_the_observations_are_ordinary_extreme_and_at_the_limits_of_the_scaling() -> None:
    policy = of_vectors(scaled=True)
    seen = observations(policy.spec, policy.snapshot.scaling, 10_000, np.random.default_rng(0))
    assert seen.shape == (10_000, 5) and seen.dtype == np.float32 and np.isfinite(seen).all()
    sizes = np.abs(seen).max(axis=1)
    assert (sizes == np.float32(ABSURD)).sum() > 2000 and (sizes == 0).sum() > 500 and (sizes < 10).sum() > 4000
    scaling = policy.snapshot.scaling
    assert scaling is not None
    scaled = np.abs((seen - scaling.mean) / scaling.std)
    assert ((scaled > 9) & (scaled < 10)).any(axis=1).sum() > 100 and ((scaled > 10) & (scaled < 11)).any(
        axis=1
    ).sum() > 100
    images = observations(of_images().spec, None, 80, np.random.default_rng(0))[:, 8:]
    assert (images == 0).all(axis=1).sum() == (images == 255).all(axis=1).sum() == 10


@pytest.mark.parametrize("limit", [0, 0.02])
def test_a_policy_that_differs_in_one_weight_is_refused_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: float
) -> None:
    pytest.importorskip("onnxruntime")
    spec = vector_spec()._replace(max_action_change=limit)
    policy, other = of_vectors(spec=spec), of_vectors(spec=spec)
    other.snapshot.flat[0, 7] += 0.01
    for kind in ("onnx", "c") if compiler() else ("onnx",):
        monkeypatch.setattr("t3d.ship.export.largest_difference", lambda _, actions: largest_difference(other, actions))
        with pytest.raises(UserError, match=r"differs from the policy by .* nothing was written"):
            export_policy(policy, tmp_path / "policy", kind, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("difference", [1.1e-5, np.nan, 0.9e-5])
def test_more_than_a_hundred_thousandth_of_the_range_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, difference: float
) -> None:
    monkeypatch.setattr(export, "_c", lambda *_: (b"", difference))
    with nullcontext() if difference < 1e-5 else pytest.raises(UserError, match="nothing was written"):
        export_policy(of_vectors(), tmp_path / "policy.c", "c", {})
    assert (tmp_path / "policy.c").exists() == (difference < 1e-5)


@pytest.mark.parametrize("wrong", [np.inf, np.nan, 100.0])
def test_actions_outside_of_the_bounds_are_refused(wrong: float) -> None:
    policy = of_vectors()

    def actions(flat: Any, previous: Any) -> Any:
        found = policy.actions(flat, previous)
        found[17, 1] = wrong
        return found

    with pytest.raises(UserError, match="outside of the environment's bounds"):
        largest_difference(policy, actions)
