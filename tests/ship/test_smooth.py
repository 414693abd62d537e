"""Policies that limit how much actions change: they take the previous action too, in every form they are shipped in."""

from __future__ import annotations

import copy
import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from rules_in_tests import ALL_NETWORKS
from run_folders import events_of
from shipped_policies import ABOUT, made, of_images, of_vectors, torch_actions, vector_spec
from t3d.app.cli import main
from t3d.config import merge
from t3d.config.networks import architecture
from t3d.errors import UserError
from t3d.events import Eval
from t3d.policy.acting import LoadedPolicy, SavedPolicy
from t3d.policy.files import read_policy, save_policy
from t3d.policy.spec import Spec, to_bounds
from t3d.seeds import derive
from t3d.ship import export
from t3d.ship.c_source import c_source
from t3d.ship.export import (
    TOLERANCE,
    compiled,
    compiler,
    export_policy,
    largest_difference,
    observations,
    put_previous_actions,
)
from t3d.store.checkpoint import newest

LIMIT = 0.2
SPEC = vector_spec()._replace(max_action_change=LIMIT)
QUICK = [("mlp", "relu"), ("layer_norm", "elu"), ("residual", "silu")]
NETWORKS = [pytest.param(*one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in ALL_NETWORKS]
WITH_COMPILER = pytest.mark.skipif(compiler() is None, reason="there is no C compiler here")
FIVE = np.linspace(-1, 1, 5)


def smooth(**keywords: Any) -> SavedPolicy:
    return of_vectors(**{"spec": SPEC, **keywords})


def near(previous: Any, action: Any, spec: Spec = SPEC) -> bool:
    """Whether an action is within reach of the previous one, but for rounding."""
    most = spec.max_action_change * (spec.action_high - spec.action_low)
    return bool((np.abs(action - np.asarray(previous, np.float64)) <= most + 1e-6).all())


def test_an_action_is_within_reach_of_the_previous_one_wherever_that_is() -> None:
    policy, rng = smooth(), np.random.default_rng(0)
    low, high = SPEC.action_low, SPEC.action_high
    for share in [*rng.random((50, 3)), np.zeros(3), np.ones(3)]:
        previous = (low + share * (high - low)).astype(np.float32)
        action = policy(rng.normal(0, 3, 5), previous)
        assert near(previous, action) and (low <= action).all() and (action <= high).all()
    beyond = policy(FIVE, 100 * high)
    assert np.array_equal(beyond, policy(FIVE, high.astype(np.float32))), "beyond the bounds counts as the bound"


def test_a_batch_acts_as_its_rows() -> None:
    policy, rng = smooth(scaled=True), np.random.default_rng(0)
    seen, before = rng.normal(size=(7, 5)), rng.uniform(SPEC.action_low, SPEC.action_high, (7, 3))
    rows = [policy(*row) for row in zip(seen, before, strict=True)]
    np.testing.assert_allclose(policy(seen, before), rows, atol=1e-6)
    np.testing.assert_allclose(policy(seen.tolist(), before.tolist()), rows, atol=1e-6)
    assert policy(seen[:0], before[:0]).shape == (0, 3)


def test_the_previous_action_matters_and_nothing_else_is_kept() -> None:
    policy = smooth()
    first = policy(FIVE, policy.initial_action)
    assert not np.array_equal(policy(FIVE, first), first)
    assert np.array_equal(policy(FIVE, policy.initial_action), first)


WRONG = {
    "without it": (None, r"takes the previous action too: policy\(observation, previous_action\); policy.controller"),
    "of another shape": (np.zeros(2), r"^previous_action has shape \(2,\) instead of \(3,\)"),
    "several for one": (np.zeros((1, 3)), r"^previous_action has shape \(1, 3\) instead of \(3,\)"),
    "not a number": ([0, float("nan"), 0], r"^previous_action\[1\] is nan; every number must be finite"),
    "absurd": ([0, 0, 1e11], r"^previous_action\[2\] is 1000.*must be finite and below"),
    "words": ("left", r"^previous_action is str 'left', not numbers"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_previous_action_is_said_in_a_sentence(wrong: str) -> None:
    previous, words = WRONG[wrong]
    with pytest.raises(UserError, match=words):
        smooth()(FIVE, previous)


def test_a_policy_without_a_limit_takes_none() -> None:
    for call in (lambda: of_vectors()(FIVE, np.zeros(3)), lambda: of_vectors().controller().reset(np.zeros(3))):
        with pytest.raises(UserError, match=r"takes no previous action: it was trained without env\.max_action_change"):
            call()


def test_a_controller_keeps_the_previous_action() -> None:
    policy, rng = smooth(), np.random.default_rng(0)
    controller = policy.controller()
    for _ in range(2):
        controller.reset()
        previous = policy.initial_action
        for seen in rng.normal(size=(6, 5)):
            action = controller(seen)
            assert np.array_equal(action, policy(seen, previous)) and near(previous, action)
            previous = action.copy()
            action[:] = 99  # what the caller does with it is no matter
    held = SPEC.action_high.astype(np.float32)
    controller.reset(held)
    assert np.array_equal(controller(FIVE), policy(FIVE, held)), "what the actuators do now"


def test_a_controller_copies_the_action_that_it_starts_from_and_refuses_a_wrong_one_at_once() -> None:
    policy, held = smooth(), np.array([0.1, 0.2, 0.3], np.float32)
    controller = policy.controller()
    controller.reset(held)
    wanted = policy(FIVE, held)
    held[:] = SPEC.action_low
    assert np.array_equal(controller(FIVE), wanted)
    kept = controller._state
    wrongs: list[Any] = ["nonsense", [[1], [1, 2]], [1.0], [float("nan")] * 3, {}, np.zeros((2, 2)), [10**400] * 3]
    for wrong in wrongs:
        with pytest.raises(UserError, match=r"^previous_action"):
            controller.reset(wrong)
        assert controller._state is kept, "a refused reset changes nothing"
    controller.reset(np.zeros((2, 3)))
    assert np.array_equal(controller(np.stack([FIVE, FIVE])), policy(np.stack([FIVE, FIVE]), np.zeros((2, 3))))


def test_episodes_of_a_batch_start_one_by_one() -> None:
    policy, rng = smooth(), np.random.default_rng(0)
    together, alone = policy.controller(), [policy.controller() for _ in range(3)]
    for starts in ([True] * 3, [False, True, False], None, [True, False, False]):
        seen = rng.normal(size=(3, 5))
        for one, start in zip(alone, starts or (), strict=False):
            if start:
                one.reset()
        wanted = [one(row) for one, row in zip(alone, seen, strict=True)]
        np.testing.assert_allclose(together(seen, starts), wanted, atol=1e-6)


def test_what_predict_cannot_take_is_said_in_a_sentence() -> None:
    policy, rows = smooth(), np.zeros((2, 5))
    with pytest.raises(UserError, match=r"^previous_action is list \[\[1\], \[1, 2\]\], not numbers of one shape"):
        policy.predict(FIVE, [[1], [1, 2]])
    for state, starts in ((np.zeros((2, 3)), [True] * 3), (np.zeros((2, 3)), []), (np.zeros((2, 3)), [[1], [1, 2]])):
        with pytest.raises(UserError, match=r"^episode_start is .* not one bool for each of the 2 observations"):
            policy.predict(rows, state, starts)
    with pytest.raises(UserError, match=r"^previous_action has shape \(3, 3\) instead of \(2, 3\)"):
        policy.predict(rows, np.zeros((3, 3)), [True, False])
    stacks = of_images(stack=3).controller()
    frames = {"wide": np.zeros((2, 34, 32, 3), np.uint8), "near": np.zeros((2, 1, 32, 33), np.uint8)}
    stacks({**frames, "speed": np.zeros((2, 2))})
    with pytest.raises(UserError, match=r"^episode_start is .* not one bool for each of the 2 observations"):
        stacks({**frames, "speed": np.zeros((2, 2))}, [True] * 3)


def test_a_controller_of_any_policy_and_of_a_batch() -> None:
    free, together = of_vectors(), smooth().controller()
    assert np.array_equal(free.controller()(FIVE), free(FIVE))
    alone = [smooth().controller() for _ in range(4)]
    for seen in np.random.default_rng(0).normal(size=(3, 4, 5)):
        np.testing.assert_allclose(together(seen), [one(row) for one, row in zip(alone, seen, strict=True)], atol=1e-6)


def test_a_controller_keeps_frames_of_its_own() -> None:
    policy, rng = of_images(max_action_change=LIMIT), np.random.default_rng(0)

    def picture() -> dict[str, Any]:
        wide = rng.integers(0, 256, (34, 32, 3), dtype=np.uint8)
        return {"wide": wide, "near": np.zeros((1, 32, 33), np.uint8), "speed": rng.normal(size=2)}

    one, other, seen = policy.controller(), policy.controller(), [picture() for _ in range(4)]
    for first in seen:
        by_hand = copy.copy(policy)
        one.reset()
        previous = policy.initial_action
        for step in (first, *seen):
            other(picture())
            previous_before, previous = previous, by_hand(step, previous)
            assert np.array_equal(one(step), previous) and near(previous_before, previous, policy.spec)


def test_many_threads_share_a_policy() -> None:
    policy, rng = smooth(), np.random.default_rng(0)
    calls = [*zip(rng.normal(size=(300, 5)), rng.uniform(SPEC.action_low, SPEC.action_high, (300, 3)), strict=True)]
    wanted = [policy(*call).tobytes() for call in calls]
    with ThreadPoolExecutor(8) as pool:
        assert [one.tobytes() for one in pool.map(lambda call: policy(*call), calls)] == wanted


def test_predict_hands_on_the_previous_action_and_starts_episodes() -> None:
    policy, rng = smooth(), np.random.default_rng(0)
    action, state = policy.predict(FIVE)
    assert (
        np.array_equal(action, policy(FIVE, policy.initial_action))
        and state is not None
        and np.array_equal(state, action)
    )
    again, _ = policy.predict(FIVE, state, episode_start=np.array([False]))
    assert np.array_equal(again, policy(FIVE, action))
    assert np.array_equal(policy.predict(FIVE, state, episode_start=np.array([True]))[0], action)
    states = None
    previous = np.broadcast_to(policy.initial_action, (2, 3))
    for starts in ([True, True], [False, False], [False, True]):
        seen = rng.normal(size=(2, 5))
        previous = np.where(np.array(starts)[:, None], policy.initial_action, previous)
        actions, states = policy.predict(seen, states, np.array(starts))
        assert np.array_equal(actions, policy(seen, previous))
        previous = actions


def test_stable_baselines3_evaluates_it(run: Path) -> None:
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation")
    vec_env = pytest.importorskip("stable_baselines3.common.vec_env")
    policy = t3d.load_policy(run)
    envs = vec_env.DummyVecEnv([lambda: gym.make("Pendulum-v1")] * 2)
    envs.seed(3)
    rewards, _ = evaluation.evaluate_policy(policy, envs, 2, return_episode_rewards=True, warn=False)
    assert sorted(rewards) == pytest.approx(sorted(episode(policy, 3 + place)[0] for place in (0, 1)), rel=1e-4)


def episode(policy: LoadedPolicy, seed: int, steps: int = 200) -> tuple[float, float]:
    """The return of one episode of Pendulum, and the largest change of an action."""
    env, controller = gym.make("Pendulum-v1"), policy.controller()
    observation, _ = env.reset(seed=seed)
    previous, total, largest = policy.initial_action, 0.0, 0.0
    for _ in range(steps):
        action = controller(observation)
        largest, previous = max(largest, float(np.abs(action - previous).max())), action
        observation, reward, *_ = env.step(action)
        total += float(reward)
    return total, largest


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of two seeds with normalised observations."""
    root = tmp_path_factory.mktemp("runs")
    changes = {"seeds": [0, 1], "normalise_observations": True, "env": {"max_action_change": LIMIT}}
    list(t3d.train(merge(helpers.small_config(run={"root": str(root), "name": "two"}), changes)))
    return root / "two"


def test_a_policy_plays_what_its_evaluation_played_to_the_last_bit(run: Path) -> None:
    evals = [event for event in events_of(run) if isinstance(event, Eval) and event.seed == 1]
    policy = t3d.load_policy(run / "last" / "seed-1")
    played = [episode(policy, derive(0, "evaluation", place), steps=50) for place in (0, 1)]
    assert [total for total, _ in played] == evals[-1].returns
    assert 0 < max(largest for _, largest in played) <= LIMIT * 4 + 1e-6


def test_the_command_evaluates_it(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--seed", "1", "--policy", "last", "--episodes", "2", "--json"]) == 0
    policy = t3d.load_policy(run / "last" / "seed-1")
    wanted = [episode(policy, derive(0, "test", place), steps=50)[0] for place in (0, 1)]
    assert json.loads(capsys.readouterr().out)["returns"] == wanted


def test_every_source_gives_the_same_policy(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "policy.onnx"
    assert main(["export", str(run), "--policy", "last", "--seed", "1", "--out", str(out)]) == 0
    checkpoint = newest(run / "checkpoints")[0]
    assert checkpoint is not None
    last = t3d.load_policy(run / "last" / "seed-1")
    for other, tolerance in ((t3d.load_policy(checkpoint.path, seed=1), 0.0), (t3d.load_policy(out), 1e-4)):
        assert other.spec.max_action_change == LIMIT and other.sha256 == last.sha256
        a, b = last.controller(), other.controller()
        for seen in np.random.default_rng(0).uniform(-1, 1, (20, 3)):
            np.testing.assert_allclose(a(seen), b(seen), atol=tolerance)
    with pytest.raises(UserError, match="takes the previous action too"):
        t3d.load_policy(out)(np.zeros(3))


def test_a_file_with_an_impossible_limit_is_refused(tmp_path: Path) -> None:
    policy = smooth()
    for limit in (2.0, -0.5, "0.2", True):
        spec = policy.spec._replace(max_action_change=0.2)
        save_policy(tmp_path / "seed-0", policy.snapshot, 0, spec, {**ABOUT, "max_action_change": limit})
        with pytest.raises(UserError, match="is not a policy that T3D wrote: "):
            read_policy(tmp_path / "seed-0")


def test_it_says_what_it_is() -> None:
    assert repr(smooth()) == (
        "<best policy of Toy-v0, seed 3, step 12,000: 5 values, the previous action -> mlp -> "
        "3 actions, changing by at most 0.2 of the range>"
    )


@pytest.mark.parametrize("scaled", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "normalised"])
@pytest.mark.parametrize(("kind", "activation"), NETWORKS)
def test_torch_onnx_and_c_act_as_the_policy(tmp_path: Path, kind: str, activation: str, scaled: bool) -> None:
    """R18, on 10,000 observations each."""
    policy = smooth(kind=kind, activation=activation, scaled=scaled)
    assert largest_difference(policy, torch_actions(policy)) <= TOLERANCE
    if compiler():
        with compiled(c_source(policy.snapshot, policy.spec, []), policy.spec) as actions:
            assert largest_difference(policy, actions) <= TOLERANCE
    pytest.importorskip("onnxruntime")
    said = export_policy(policy, tmp_path / "policy.onnx", "onnx", {}).difference
    assert said == largest_difference(policy, t3d.load_policy(tmp_path / "policy.onnx").actions) <= TOLERANCE


def test_half_of_the_compared_actions_are_the_choice_of_the_network() -> None:
    for limit in (0.5, 0.1, 0.02):
        policy = smooth(spec=SPEC._replace(max_action_change=limit))
        rng = np.random.default_rng(0)
        flat = observations(policy.spec, None, 10_000, rng)
        previous = put_previous_actions(policy, flat, rng)
        free = to_bounds(policy.actor(flat), policy.spec)
        assert 0.4 < (policy.actions(flat, previous) == free).mean() < 0.95
        assert ((previous >= SPEC.action_low) & (previous <= SPEC.action_high)).all()


def test_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(export, "OBSERVATIONS", 500)
    policy, file = of_images(max_action_change=LIMIT), tmp_path / "policy.onnx"
    export_policy(policy, file, "onnx", {})
    for other in (t3d.load_policy(file).actions, torch_actions(policy)):
        assert largest_difference(policy, other) <= TOLERANCE


def test_the_study_reports_the_largest_change_of_any_episode_and_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[2] / "experiments" / "smooth.py"
    monkeypatch.syspath_prepend(file.parent)
    module_spec = spec_from_file_location("smooth_study", file)
    assert module_spec is not None and module_spec.loader is not None
    study: Any = module_from_spec(module_spec)
    module_spec.loader.exec_module(study)
    policy = of_vectors(spec=vector_spec(3, 1))
    policy.about["env"] = "Pendulum-v1"
    together = study.play(policy, 3)
    alone = []
    for place in range(3):
        monkeypatch.setattr(study, "derive", lambda *_, place=place: derive(0, "test", place))
        alone.append(study.play(policy, 1))
    assert together.largest_change == max(one.largest_change for one in alone)
    assert together.change == pytest.approx(np.mean([one.change for one in alone]))
    one = {"limit": 0, "policies": [played._asdict() for played in alone]}
    assert study.cells(one, {})[3] == f"{together.largest_change:.1%}"
    assert study.commands([one, {"arguments": ["--seeds", "4"]}, {"arguments": ["--seeds", "4"]}]) == [
        "",
        "Made by `python experiments/smooth.py --seeds 4`.",
    ]
    assert study.commands([one]) == []


SPACES = {
    "doubles, whose bounds are no floats": SPEC._replace(
        action_low=np.array([-1 / 3, 0.1, 7]), action_high=np.array([1 / 3, 0.7, 7.5]), action_dtype="float64"
    ),
    "a table of actions": vector_spec(5, 6)._replace(action_shape=(2, 3), max_action_change=LIMIT),
    "one number": vector_spec(5, 1)._replace(action_shape=(), max_action_change=LIMIT),
}


@pytest.mark.parametrize("name", SPACES)
def test_other_spaces(tmp_path: Path, name: str) -> None:
    pytest.importorskip("onnxruntime")
    spec = SPACES[name]
    policy = made(architecture("mlp", (spec.observation_size, 16, spec.action_size), "relu"), spec)
    for kind in ("onnx", "c") if compiler() else ("onnx",):
        exported = export_policy(policy, tmp_path / f"policy.{kind}", kind, {})
        assert exported.difference is not None and exported.difference <= TOLERANCE
    loaded = t3d.load_policy(tmp_path / "policy.onnx")
    one, other = (each.controller()(FIVE) for each in (policy, loaded))
    assert one.shape == other.shape == spec.action_shape and one.dtype == other.dtype == np.dtype(spec.action_dtype)
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_another_runtime_gives_the_previous_action_as_a_second_input(tmp_path: Path) -> None:
    """The inputs are those that docs/shipping.md names."""
    onnxruntime = pytest.importorskip("onnxruntime")
    policy, rng = smooth(scaled=True), np.random.default_rng(0)
    export_policy(policy, tmp_path / "policy.onnx", "onnx", {})
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    said = session.get_modelmeta().custom_metadata_map["max_action_change"]
    assert said.startswith("0.2 of the range per step; at first the previous action is the middle, [")
    seen = rng.normal(size=(4, 5)).astype(np.float32)
    before = (rng.normal(size=(4, 3)) * 2).astype(np.float32)  # some beyond the bounds
    (action,) = session.run(["action"], {"observation": seen, "previous_action": before})
    np.testing.assert_allclose(action, policy(seen, before), atol=1e-5)


@WITH_COMPILER
def test_c_takes_the_previous_action_as_its_second_argument(tmp_path: Path) -> None:
    policy = smooth(scaled=True)
    export_policy(policy, tmp_path / "policy.c", "c", {})
    text = (tmp_path / "policy.c").read_text(encoding="ascii")
    middle = ", ".join(f"{value:.9g}f" for value in policy.initial_action)
    assert "t3d_act(observation, action, action)" in text and "at most 0.2 of its range per step" in text
    (tmp_path / "main.c").write_text(
        '#include <math.h>\n#include <stdio.h>\n#include "policy.c"\n'
        "int main(void) { float seen[5] = {0.5f, -0.25f, 1.0f, 0.0f, 2.0f}, action[3] = {" + middle + "};\n"
        "for (int t = 0; t < 3; t++) { if (!t3d_act(seen, action, action)) return 1;\n"
        'printf("%.9g %.9g %.9g ", action[0], action[1], action[2]); }\n'
        "float bad[3] = {0.0f, NAN, 0.0f}, kept[3] = {7, 7, 7};\n"
        'printf("%d %g\\n", t3d_act(seen, bad, kept), kept[0]); return 0; }\n'
    )
    subprocess.run(
        [str(compiler()), "-std=c99", str(tmp_path / "main.c"), "-o", str(tmp_path / "main"), "-lm"], check=True
    )
    *numbers, ok, kept = subprocess.check_output([tmp_path / "main"], text=True).split()
    controller = policy.controller()
    wanted = [controller([0.5, -0.25, 1.0, 0.0, 2.0]) for _ in range(3)]
    np.testing.assert_allclose(np.array(numbers, float).reshape(3, 3), wanted, atol=1e-5)
    assert (ok, kept) == ("0", "7")
