"""TD3 with images: the update against a plain one, shifts against a loop, acting in NumPy against torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import helpers
import t3d.algo.pixels
from image_batches import PixelOracle, image_batches, image_spec, observations, pixels_of, shifted_naively
from rules_in_tests import ALL_NETWORKS, CHOICES
from t3d.algo.engines import ENGINES
from t3d.algo.engines.verify import FixedBatch, exact_products, mismatch, random_batch
from t3d.algo.learner import Learner
from t3d.algo.networks import ImageActor, gradients, initial, named_tensors
from t3d.algo.own_code import check_own_code
from t3d.algo.pixels import pixels_init, pixels_update, shifted, whole_pixels
from t3d.algo.rules import PIXELS, TD3, rule_of
from t3d.algo.td3 import coefficients_of
from t3d.config import Config, TD3Config, diff, merge
from t3d.config.networks import actor_architecture, critic_architecture, encoder_of
from t3d.config.presets import preset
from t3d.errors import UserError
from t3d.policy.acting import MemberPolicy, PolicySnapshot
from t3d.policy.architectures import Architecture
from t3d.policy.spec import Spec
from t3d.run.placement import choose_engine

SMALL = TD3Config(
    batch_size=6,
    actor_hidden=(8, 8),
    critic_hidden=(8, 8),
    encoder_channels=3,
    encoder_strides=(3, 2),
    encoder_features=5,
    actor_lr=3e-3,
    critic_lr=1e-3,
    target_noise=0.8,
    target_noise_clip=0.9,
    tau=0.05,
)
CAMERA = image_spec((3, 16, 18), vector=2, stack=2)
LAYOUTS: dict[str, Spec] = {
    "32 pixels": image_spec((3, 32, 32)),
    "grey": image_spec((1, 40, 32)),
    "stacked": image_spec((3, 48, 48), stack=3),
    "beside a vector": image_spec((3, 36, 33), vector=5, stack=2),
    "two cameras": image_spec((3, 32, 40), (1, 64, 48), vector=3, stack=2),
    "84 pixels": image_spec((3, 84, 84), stack=3),
    "128 pixels": image_spec((4, 128, 128)),
}


def random_actor(spec: Spec, cfg: TD3Config, members: int, dtype: torch.dtype = torch.float32) -> ImageActor:
    """Actors whose scales and shifts are not what they start as."""
    network = actor_architecture(spec, cfg)
    flat = initial(network, range(members), dtype)
    noise = torch.randn(flat.shape, generator=torch.Generator().manual_seed(1), dtype=dtype)
    return ImageActor(network, flat + 0.02 * noise)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("strides", [(2, 2, 2, 1), (2, 1, 1), (4,)], ids=str)
def test_numpy_computes_what_torch_computes(layout: str, strides: tuple[int, ...]) -> None:
    spec = LAYOUTS[layout]
    agree(spec, TD3Config(actor_hidden=(16, 16), encoder_channels=8, encoder_strides=strides), count=3)


@pytest.mark.parametrize(("kind", "activation"), ALL_NETWORKS)
def test_every_kind_of_network_may_follow_the_encoder(kind: str, activation: Any) -> None:
    agree(LAYOUTS["two cameras"], replace(SMALL, actor_network=kind, actor_activation=activation), count=5)


def agree(spec: Spec, cfg: TD3Config, count: int) -> None:
    actor = random_actor(spec, cfg, 2)
    s = observations(spec, (2, count), torch.Generator().manual_seed(0))
    expected = actor(s).detach().numpy()
    snapshot = PolicySnapshot(0, actor.architecture, actor.flat.numpy())
    for member in range(2):
        given = s[member].numpy().copy()
        acted = MemberPolicy(snapshot, member)(given)
        assert acted.dtype == np.float32 and np.array_equal(given, s[member].numpy()), "its input is not overwritten"
        np.testing.assert_allclose(acted, expected[member], atol=5e-6)
    assert len(np.unique(expected)) > count, "observations matter"


def test_an_architecture_is_described_in_plain_values() -> None:
    network = actor_architecture(LAYOUTS["two cameras"], SMALL)
    again = Architecture.from_dict(network.to_dict())
    assert again == network and again.size == network.size == initial(network, [0], torch.float32).shape[1]
    assert "encoder" not in actor_architecture(helpers.make_spec(), SMALL).to_dict()


def test_the_encoder_and_the_actor_are_views_of_one_row() -> None:
    actor = random_actor(CAMERA, SMALL, 2)
    assert actor.encoder.flat.shape[1] + actor.actor.flat.shape[1] == actor.flat.shape[1]
    s = observations(CAMERA, (2, 4), torch.Generator().manual_seed(0))
    assert torch.equal(actor(s), actor.actor(actor.encode(s)))
    before = actor(s)
    actor.encoder.flat.mul_(1.1)
    assert not torch.equal(actor(s), before) and torch.equal(actor(s), actor.actor(actor.encode(s)))


def distance_from_oracle(
    update: Callable[..., Any], spec: Spec, cfg: TD3Config, members: int = 1, updates: int = 20
) -> float:
    agent = pixels_init(spec, cfg, range(members), dtype=torch.float64)
    oracles = [PixelOracle(agent, member, spec, cfg) for member in range(members)]
    for number, (batch, draws) in enumerate(image_batches(spec, cfg, members, updates), 1):
        drawn = draws if cfg.image_shift else draws._replace(shift=None)
        trace = update(agent, batch, drawn, cfg, coefficients_of(cfg), number % cfg.policy_delay == 0)
        if any(value is not None and value.requires_grad for value in trace):
            return float("inf")
        for oracle in oracles:
            oracle.update(batch, drawn)
    return max(oracle.difference(agent) for oracle in oracles)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (CAMERA, {}),
        (CAMERA, {"critics": 4}),
        (CAMERA, {"image_shift": 0}),
        (CAMERA, {"actor_network": "layer_norm", "critic_network": "layer_norm"}),
        (image_spec((1, 12, 16), (2, 15, 13), vector=0, stack=3), {"critics": 1}),
    ],
    ids=["plain", "four critics", "unshifted", "LayerNorm", "two cameras"],
)
def test_update_equals_the_oracle(spec: Spec, changes: dict[str, Any]) -> None:
    assert distance_from_oracle(pixels_update, spec, replace(SMALL, **changes), members=2, updates=40) < 1e-10


MUTATIONS = [  # of what is not td3.py's
    ("4: s is not shifted", "= shifted(s, pixels[..., :2], encoder), ", "= s, "),
    ("4: s2 is shifted like s", "shifted(s2, pixels[..., 2:], encoder)", "shifted(s2, pixels[..., :2], encoder)"),
    ("5: s is encoded for the target", "s2 = policy.encode(s2)", "s2 = policy.encode(s)"),
    ("5: the online actor for the target", "policy.actor, agent.actor_target", "policy.actor, policy.actor"),
    ("7: the online critics for the target", "critic, agent.critic_target", "critic, critic"),
    ("10: s2 for s", "s = policy.encode(s)", "s = policy.encode(batch.s2)"),
    (
        "12: the encoder does not learn",
        "optimise(policy.encoder, agent.encoder_adam, for_encoder, rate, coefficients)",
        "pass",
    ),
    (
        "12: the encoder learns at the actor's rate",
        "for_encoder, rate",
        "for_encoder, coefficients.actor_lr",
    ),
    ("12: the critics do not learn", "optimise(critic, adam, for_critics, rate, coefficients)", "pass"),
    ("12: the critics learn at the actor's rate", "for_critics, rate", "for_critics, coefficients.actor_lr"),
    ("13: the state is encoded again", "s.detach()", "policy.encode(batch.s).detach()"),
    ("13: the actor always moves", " if update_actor else trace", ""),
]


def mutated(right: str, wrong: str) -> Callable[..., Any]:
    source = Path(t3d.algo.pixels.__file__).read_text(encoding="utf-8")
    assert source.count(right) == 1, f"the text to break stands {source.count(right)} times in pixels.py: {right}"
    module = ModuleType("mutated_pixels")
    exec(compile(source.replace(right, wrong), "mutated_pixels", "exec"), module.__dict__)
    return module.pixels_update  # type: ignore[no-any-return]


@pytest.mark.parametrize(("what", "right", "wrong"), MUTATIONS, ids=[what for what, _, _ in MUTATIONS])
def test_a_broken_step_is_seen(what: str, right: str, wrong: str) -> None:
    assert distance_from_oracle(mutated(right, wrong), CAMERA, SMALL, updates=6) > 1e-8


def test_the_encoder_gets_no_gradient_from_the_actor() -> None:
    """Where the critics' loss counts for nothing, the actor learns and the encoder stays what it was, to the bit."""
    agent = pixels_init(CAMERA, SMALL, range(2), dtype=torch.float64)
    before = agent.policy.encoder.flat.clone(), agent.policy.actor.flat.clone()
    for batch, draws in image_batches(CAMERA, SMALL, 2, 4):
        unweighted = batch._replace(weight=torch.zeros_like(batch.weight))
        pixels_update(agent, unweighted, draws, SMALL, coefficients_of(SMALL), True)
    assert torch.equal(agent.policy.encoder.flat, before[0])
    assert not torch.equal(agent.policy.actor.flat, before[1])


def test_the_gradient_of_the_encoder_is_that_of_finite_differences() -> None:
    spec = image_spec((1, 9, 9), vector=1)
    agent = pixels_init(spec, SMALL, [0], dtype=torch.float64)
    (batch, _), *_ = image_batches(spec, SMALL, 1, 1)

    def loss() -> torch.Tensor:
        return agent.critic(agent.policy.encode(batch.s), batch.a).square().sum()

    (gradient, _), step = gradients(loss(), agent.policy.encoder, agent.critic), 1e-6
    for place in range(0, gradient.shape[1], 5):
        sides = []
        for sign in (1, -2, 1):
            agent.policy.encoder.flat[0, place] += sign * step
            sides.append(float(loss().detach()))
        assert (sides[0] - sides[1]) / (2 * step) == pytest.approx(float(gradient[0, place]), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("choice", CHOICES)
def test_a_member_beside_others_is_the_member_alone(choice: str) -> None:
    cfg = replace(SMALL, **CHOICES[choice])
    together = Learner(CAMERA, cfg, range(3), dtype=torch.float64, rule=PIXELS)
    alone = [Learner(CAMERA, cfg, [seed], dtype=torch.float64, rule=PIXELS) for seed in range(3)]
    start = together.agent.policy.flat.clone()
    for batch, draws in image_batches(CAMERA, cfg, 3, 6):
        together.update(batch, draws)
        for member, one in enumerate(alone):
            one.update(*helpers.member_of(batch, draws, member))
    assert not torch.equal(together.agent.policy.flat, start)
    for member, one in enumerate(alone):
        ours = dict(named_tensors(together.agent))
        for name, expected in named_tensors(one.agent):
            given = ours[name].view(3, -1)[member].view_as(expected) if expected.ndim else ours[name]
            assert torch.allclose(given, expected, atol=1e-10), name


@given(
    shapes=st.lists(st.tuples(st.integers(1, 3), st.integers(3, 12), st.integers(3, 12)), min_size=1, max_size=3),
    vector=st.integers(0, 3),
    stack=st.integers(1, 4),
    most=st.integers(1, 16),
    seed=st.integers(0, 10**6),
)
def test_images_are_shifted_as_by_a_loop(
    shapes: list[tuple[int, int, int]], vector: int, stack: int, most: int, seed: int
) -> None:
    spec, generator = image_spec(*shapes, vector=vector, stack=stack), torch.Generator().manual_seed(seed)
    encoder = encoder_of(spec, TD3Config(encoder_strides=(1,)))
    assert encoder is not None
    s, by = observations(spec, (2, 3), generator), torch.randint(-most, most + 1, (2, 3, 2), generator=generator)
    moved = shifted(s, by, encoder)
    assert moved.dtype == torch.uint8
    for member in range(2):
        assert torch.equal(moved[member], shifted_naively(s[member], by[member], spec, most))


@pytest.mark.parametrize("most", [1, 4, 16])
def test_all_shifts_are_equally_likely(most: int) -> None:
    normal = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(whole_pixels(normal, most) + most)
    expected = 200_000 / (2 * most + 1)
    assert len(counts) == 2 * most + 1 and ((counts - expected).abs() < 5 * expected**0.5).all()
    double = normal[:1000].double()
    assert torch.equal(whole_pixels(double, most), pixels_of(double, most))
    extremes = torch.tensor([-40.0, 40.0, float("-inf"), float("inf")])
    assert whole_pixels(extremes, most).tolist() == [-most, most, -most, most]


def test_a_learner_fits_the_rewards_of_transitions_that_end() -> None:
    spec = image_spec((3, 32, 32))
    cfg = replace(TD3Config(), batch_size=24, image_shift=0, critic_lr=1e-3, encoder_channels=8)
    learner = Learner(spec, cfg, [0, 1], rule=PIXELS)
    batch = random_batch(spec, cfg, 2, "cpu")
    ended = batch._replace(terminated=torch.ones_like(batch.r), weight=torch.ones_like(batch.r))
    losses = [learner.update(ended, learner.draw()).losses["critic"] for _ in range(150)]
    assert (losses[-1] < 0.01 * losses[0]).all(), (losses[0], losses[-1])


def test_a_learner_is_restored_to_the_last_bit() -> None:
    learners = [Learner(CAMERA, SMALL, (3, 4), rule=rule_of("td3", CAMERA)) for _ in range(2)]
    batch = random_batch(CAMERA, SMALL, 2, "cpu")
    for _ in range(3):
        learners[0].update(batch, learners[0].draw())
    state = learners[0].state()
    assert {"policy", "encoder_adam_mean", "shift", "target_noise"} <= {*state}
    learners[1].restore(state)
    for learner in learners:
        learner.update(batch, learner.draw())
    for (name, ours), (_, theirs) in zip(*(named_tensors(one.agent) for one in learners), strict=True):
        assert torch.equal(ours, theirs), name


def test_images_choose_the_rule() -> None:
    assert rule_of("td3", CAMERA) is PIXELS and rule_of("td3", helpers.make_spec()) is rule_of("td3") is TD3
    with pytest.raises(UserError, match="unknown rule td4, did you mean td3"):
        rule_of("td4", CAMERA)
    agent = pixels_init(CAMERA, SMALL, range(2))
    moved = sum(adam.mean.numel() for adam in (agent.encoder_adam, agent.actor_adam, agent.critic_adam))
    assert PIXELS.parameters(CAMERA, SMALL) == moved // 2


def test_engines_say_what_they_do_with_images() -> None:
    coefficients, why = coefficients_of(SMALL), "computes no convolutions, and the observations have images"
    for name, engine in ENGINES.items():
        assert engine.refuses(PIXELS, SMALL, coefficients) == (why if name == "fused" else "")
    cfg = Config(device="cpu", td3=SMALL)
    assert choose_engine(cfg, CAMERA, PIXELS, coefficients) == ("eager", f"fused {why}", [])
    with pytest.raises(UserError, match=f"engine fused {why}; use --engine auto"):
        choose_engine(replace(cfg, engine="fused"), CAMERA, PIXELS, coefficients)
    assert mismatch("eager", CAMERA, SMALL, (0, 1), "cpu", PIXELS) == ""


OWN = """
from t3d.algo.rules import PIXELS, TD3
from t3d.policy.architectures import Kind, mlp, mlp_layout
from dataclasses import replace
def doubled(parameters, x, ops):
    return 2 * mlp(parameters, x, ops)
def different(parameters, x, ops):
    return mlp(parameters, x, ops) * (1.001 if x.ndim == 2 else 1)
good, wrong = Kind(mlp_layout, doubled), Kind(mlp_layout, different)
vectors, images, unshifted = TD3._replace(), PIXELS._replace(), PIXELS._replace(draws=TD3.draws)
"""


def test_a_network_of_ones_own_follows_the_encoder_and_is_tried_as_ever(tmp_path: Path) -> None:
    (tmp_path / "own_for_images.py").write_text(OWN)
    names = {
        name: f"{tmp_path}/own_for_images.py:{name}" for name in ("good", "wrong", "vectors", "images", "unshifted")
    }

    def check(changes: dict[str, Any]) -> None:
        cfg = merge(Config(td3=SMALL), changes)
        check_own_code(cfg, CAMERA, rule_of(cfg.algo, CAMERA))

    check({"td3": {"actor_network": names["good"], "critic_network": names["good"]}})
    agree(CAMERA, replace(SMALL, actor_network=names["good"]), count=4)
    with pytest.raises(UserError, match="wrong cannot be used: NumPy, with which policies act, and torch differ"):
        check({"td3": {"actor_network": names["wrong"]}})
    check({"algo": names["images"]})
    for rule in (names["vectors"], f"{Path(__file__).parents[1] / 'ddpg.py'}:DDPG"):
        with pytest.raises(
            UserError, match=r"cannot be used: its networks are for vectors, and .* images; base it on PIXELS of \S+$"
        ):
            check({"algo": rule})
    with pytest.raises(UserError, match=r"unshifted cannot be used: it takes no notice of td3.image_shift"):
        check({"algo": names["unshifted"], "td3": {"image_shift": 3}})


def test_convolutions_that_leave_nothing_are_refused_in_a_sentence() -> None:
    cfg = replace(SMALL, encoder_strides=(4, 4, 4))
    words = r"convolutions with strides \[4, 4, 4\] leave nothing of 16 pixels; give fewer or smaller td3.encoder_str"
    for build in (actor_architecture, critic_architecture):
        with pytest.raises(UserError, match=words):
            build(CAMERA, cfg)


@pytest.mark.parametrize(
    ("field", "value"),
    [("encoder_channels", 4), ("encoder_strides", (2, 3)), ("encoder_features", 6), ("image_shift", 3)],
)
def test_every_setting_for_images_changes_what_is_learned(field: str, value: Any) -> None:
    learned = []
    for cfg in (SMALL, replace(SMALL, **{field: value})):
        learner = Learner(CAMERA, cfg, [0], rule=PIXELS)
        batch = random_batch(CAMERA, cfg, 1, "cpu")
        for _ in range(2):
            trace = learner.update(batch, learner.draw())
        learned.append(trace.q)
    assert not torch.equal(*learned)


DRQ_V2: dict[str, Any] = {  # what DrQ-v2 has for its tasks of medium difficulty
    "env.frame_stack": 3,
    "env.action_repeat": 2,
    "replay.n_step": 3,
    "updates_per_step": 0.5,
    "td3.batch_size": 256,
    "td3.actor_lr": 1e-4,
    "td3.critic_lr": 1e-4,
    "td3.tau": 0.01,
    "td3.gamma": 0.99,
    "td3.target_noise_clip": 0.3,
    "td3.critics": 2,
    "td3.aggregate": "min",
    "td3.encoder_channels": 32,
    "td3.encoder_features": 50,
    "td3.image_shift": 4,
    "noise.kind": "gaussian",
    "noise.exploration_noise": 1.0,
    "noise.final_noise": 0.1,
}
OTHERWISE: dict[str, Any] = {  # and where the preset differs
    "td3.encoder_strides": ((2, 1, 1, 1), (2, 2, 2, 1)),
    "td3.actor_hidden": ((1024, 1024), (256, 256)),
    "td3.critic_hidden": ((1024, 1024), (256, 256)),
    "td3.policy_delay": (1, 2),
}


def test_the_preset_is_drq_v2_where_it_does_not_say_otherwise() -> None:
    def setting(name: str) -> Any:
        section, _, last = name.rpartition(".")
        return getattr(getattr(cfg, section) if section else cfg, last)

    cfg = preset("pixels")
    assert {name: setting(name) for name in DRQ_V2} == DRQ_V2
    assert {name: setting(name) for name in OTHERWISE} == {name: ours for name, (_, ours) in OTHERWISE.items()}
    changed = {name for name in diff(cfg, Config()) if name not in ("preset", "total_steps", "random_steps")}
    assert changed - {*DRQ_V2, *OTHERWISE} == {"replay.capacity", "noise.decay_steps"}, "chosen"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
@pytest.mark.parametrize("choice", ["plain", "truncated", "categorical", "together"])
@pytest.mark.parametrize("members", [1, 3])
def test_captured_equals_eager(members: int, choice: str) -> None:
    cfg = replace(SMALL, **CHOICES.get(choice, {}))
    batch = next(image_batches(CAMERA, cfg, members, 1))[0]
    source = FixedBatch(type(batch)(*(part.cuda() for part in batch)))
    made = []
    with exact_products():
        for engine in ("eager", "capture"):
            learner = Learner(
                CAMERA, cfg, range(members), "cuda", torch.float64, engine=engine, rule=PIXELS, source=source
            )
            if engine == "capture":
                learner.prepare()
            for n in (1, 2, 9, 5):
                learner.run(n)
            made.append(dict(named_tensors(learner.agent)))
    for name, tensor in made[0].items():
        torch.testing.assert_close(made[1][name], tensor, rtol=1e-6, atol=1e-8)
    assert mismatch("capture", CAMERA, cfg, range(members), "cuda", PIXELS) == ""
