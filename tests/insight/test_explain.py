"""t3d explain: fifteen steps whose numbers are those of a real update, and a run that is left as it was."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import helpers
import t3d
import worlds
from actor_helpers import actor_config
from rules_in_tests import CHOICES
from run_folders import assert_equal
from t3d.algo.learner import Learner
from t3d.app import pages
from t3d.app.cli import main
from t3d.config import Config, Member, TD3Config, merge
from t3d.errors import UserError
from t3d.events import Saved
from t3d.insight.explain import explained
from t3d.insight.explain_page import BLUE, ORANGE, PICTURES, drawn, page
from t3d.insight.fifteen_steps import fifteen_texts
from t3d.insight.one_update import OneUpdate, one_update
from t3d.store.checkpoint import Checkpoint
from t3d.store.reader import open_run

ROOT = Path(__file__).parents[2]
COLOURS = (BLUE, ORANGE)
NUMBER = r"-?\d+\.?\d*(?:e[-+]\d+)?"


def config(tmp_path: Path, name: str = "run", **changes: Any) -> Config:
    cfg = helpers.small_config(run={"root": str(tmp_path), "name": name}, checkpoint={"every_steps": 100}, threads=1)
    return merge(cfg, changes)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    list(t3d.train(config(root, seeds=[0, 4], env={"id": "Pendulum-v1"})))
    return root / "run"


@pytest.fixture(scope="module")
def update(run_folder: Path) -> OneUpdate:
    return one_update(open_run(run_folder), "4")


def made_up(cfg: Config) -> OneUpdate:
    """An update of one member on a random batch, without a run."""
    spec, td3 = helpers.make_spec(), cfg.td3
    learner = Learner(spec, td3, [0], dtype=torch.float64)
    for batch, draws in helpers.random_batches(spec, td3, 1, td3.policy_delay):
        before = {name: torch.from_numpy(one) for name, one in learner.state().items() if hasattr(one, "ndim")}
        trace = learner.update(batch, draws)
    after = {name: torch.from_numpy(one) for name, one in learner.state().items() if hasattr(one, "ndim")}
    parts: list[Any] = [batch, draws, trace]
    batch, draws, trace = (type(one)(*(None if value is None else value[0] for value in one)) for one in parts)
    losses = {name: float(one[0]) for name, one in parts[2].losses.items()}
    about = "run", cfg, td3, Member(0), spec, 10, learner.updates, 10
    return OneUpdate(*about, batch, draws, trace, losses, before, after)


def at(update: OneUpdate, source: str) -> Tensor:
    """What a source such as trace.q2[0] names."""
    owner, name, place = re.fullmatch(r"(\w+)\.(\w+)(?:\[(\d)\])?", source).groups()  # type: ignore[union-attr]
    values: Tensor = getattr(getattr(update, owner), name)
    return values if place is None else values[int(place)]


def statistics_of(values: Tensor) -> list[float]:
    values = values.double()
    return [float(one) for one in (values.mean(), values.std(correction=0), values.min(), values.max())]


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_the_steps_are_those_of_the_page_about_the_algorithm() -> None:
    text = (ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| (.*?) \| \[", text, re.MULTILINE)
    said = [(str(number), step.formula) for number, step in enumerate(fifteen_texts(Config(), TD3Config()), 1)]
    assert rows == said and len(said) == 15


def test_every_number_of_the_page_is_of_the_update(update: OneUpdate) -> None:
    html = page(update, explained(update))
    rows = re.findall(
        r'<span title="((?:trace|batch)\.[^"]+)">.*?</span></th><td>(\S+?)</td>((?:<td>.*?</td>)+)</tr>', html
    )
    assert {source.partition("[")[0] for source, *_ in rows} == {
        *(f"batch.{name}" for name in ("s", "a", "r", "s2", "terminated")),
        *(f"trace.{name}" for name in ("pi2", "eps", "a2", "q2", "v2", "y", "q", "td", "loss", "pi", "q_pi")),
    }
    for source, shape, cells in rows:
        values = at(update, source)
        assert shape == "×".join(map(str, values.shape))
        assert list(map(float, re.findall(NUMBER, cells))) == pytest.approx(statistics_of(values), rel=1e-3, abs=1e-9)


def test_moves_of_the_networks_are_those_of_the_agent(update: OneUpdate) -> None:
    steps = explained(update)
    for step, name in ((12, "critic"), (13, "actor"), (14, "actor_target"), (15, "critic_target")):
        moved = steps[step - 1].quantities[-1]
        assert torch.equal(moved.values, update.after[name] - update.before[name]) and moved.values.abs().max() > 0
    for name, online in (("actor_target", "actor"), ("critic_target", "critic")):
        expected = update.td3.tau * update.after[online] + (1 - update.td3.tau) * update.before[name]
        assert torch.allclose(update.after[name], expected, atol=1e-6)


def test_examples_are_sums_that_come_out(update: OneUpdate) -> None:
    steps = explained(update)
    y, r, discount, _, terminated, v2 = map(float, re.findall(NUMBER, steps[8].example))
    assert r + discount * (1 - terminated) * v2 == pytest.approx(y, rel=2e-3)
    assert y == pytest.approx(float(update.trace.y[0]), rel=1e-3)
    pi2, eps, low, high, a2 = map(float, re.findall(NUMBER, steps[5].example))
    assert min(max(pi2 + eps, low), high) == pytest.approx(a2, abs=1e-3)
    *values, kept = map(float, re.findall(NUMBER, steps[7].example))
    assert min(values) == kept
    for step in (14, 15):
        tau, online, _, same, target, result = map(float, re.findall(NUMBER, steps[step - 1].example))
        assert tau == same and tau * online + (1 - tau) * target == pytest.approx(result, rel=1e-2)


def numbers_in(text: str) -> list[float]:
    return [float(one) for one in re.findall(NUMBER, text)]


@pytest.mark.parametrize("settings", [{}, {"target_noise": 0.5, "target_noise_clip": 0.3}], ids=["paper", "clipped"])
def test_figures_in_sentences_are_those_of_the_update(settings: dict[str, float]) -> None:
    update = made_up(merge(Config(), {"td3": {"batch_size": 64, **settings}}))
    facts = [step.facts for step in explained(update)]
    td, sigma, clip = update.trace.td.tolist(), update.td3.target_noise, update.td3.target_noise_clip
    squares = [sum(error**2 for error in of_critic) / len(of_critic) for of_critic in td]
    assert facts[10][0].startswith("the whole loss, ") and numbers_in(facts[10][0]) == [
        pytest.approx(sum(squares), rel=1e-3)
    ]
    actor_loss = -sum(update.trace.q_pi.tolist()) / 64
    assert facts[12][0].startswith("actor loss, ") and numbers_in(facts[12][0]) == [pytest.approx(actor_loss, rel=1e-3)]
    noise = [abs(sigma * one) for one in update.draws.target_noise.flatten().tolist()]
    share = sum(one >= clip for one in noise) / len(noise)
    assert facts[5] == (f"{share:.1%} of the noise is at its clip",) and (share > 0.4) == bool(settings)
    pairs = list(zip(*update.trace.q2.tolist(), strict=True))
    smaller, apart = sum(a < b for a, b in pairs) / 64, sum(abs(a - b) for a, b in pairs) / 64
    assert f"Q_θ1' is the smaller one in {smaller:.0%} of the batch" in facts[7][0]
    assert numbers_in(facts[7][0])[-1] == pytest.approx(apart, rel=1e-3) and 0 < smaller < 1
    for step, online, target in ((14, "actor", "actor_target"), (15, "critic", "critic_target")):
        weights = update.after[online].flatten().tolist()
        far, near = (math.dist(weights, agent[target].flatten().tolist()) for agent in (update.before, update.after))
        assert numbers_in(facts[step - 1][0]) == pytest.approx([far, near], rel=1e-3) and near < far


def test_an_update_of_a_sweep_with_several_steps_priorities_and_normalised_observations(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        **{"sweep": ["td3.gamma=0.5,0.9"], "seeds": [0, 3], "normalise_observations": True},
        **{"replay": {"n_step": 3, "sampling": "proportional"}, "td3": {"batch_size": 64}},
    }
    list(t3d.train(config(tmp_path, **changes)))
    run = open_run(tmp_path / "run")
    updates = {member.name: one_update(run, member.name) for member in run.cfg.members}
    assert [*updates] == ["gamma-0.5-seed-0", "gamma-0.5-seed-3", "gamma-0.9-seed-0", "gamma-0.9-seed-3"]
    for member, update in zip(run.cfg.members, updates.values(), strict=True):
        batch, trace, gamma = update.batch, update.trace, dict(member.values)["td3.gamma"]
        assert (update.member, update.td3.gamma) == (member, gamma)
        discounts = {round(one, 6) for one in batch.discount.tolist()}
        assert round(gamma**3, 6) in discounts <= {round(gamma**n, 6) for n in (1, 2, 3)}
        y = batch.r + batch.discount * (1 - batch.terminated) * trace.q2.amin(dim=0)
        assert torch.allclose(trace.y, y, rtol=1e-5)
        assert batch.weight.min() < batch.weight.max() == 1
        whole = float((batch.weight * trace.td**2).mean(dim=1).sum())
        (said,) = explained(update)[10].facts
        assert numbers_in(said) == [pytest.approx(whole, rel=1e-3)]
        assert batch.s[:, 2].abs().max() < 4, "the pendulum's speed, up to 8, in its own deviations"
    first, second = (updates[f"gamma-{gamma}-seed-0"].before["actor"] for gamma in (0.5, 0.9))
    assert not torch.equal(first, second)


@pytest.mark.system
def test_an_update_of_a_run_with_actors(tmp_path: Path) -> None:
    run = {"root": str(tmp_path), "name": "run"}
    list(t3d.train(merge(actor_config(tmp_path, "Told"), {"seeds": [2, 5], "run": run})))
    update = one_update(open_run(tmp_path / "run"), "5")
    assert (update.member.seed, update.stored, len(explained(update))) == (5, 300, 15)
    words = ((update.batch.s[:, 0].long() << 16) | update.batch.s[:, 1].long()).tolist()
    rewards = [seed % 1000 + step for seed, step in zip(words, update.batch.s2[:, 2].tolist(), strict=True)]
    assert update.batch.r.tolist() == rewards, "transitions that happened"
    y = update.batch.r + update.td3.gamma * (1 - update.batch.terminated) * update.trace.q2.amin(dim=0)
    assert torch.allclose(update.trace.y, y)


def test_the_terminal_has_fifteen_steps_in_order_within_80_columns(
    run_folder: Path, update: OneUpdate, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(["explain", str(run_folder), "--seed", "4", "--out", str(tmp_path / "page.html")]) == 0
    said = capsys.readouterr().out
    lines = said.splitlines()
    assert [int(one) for one in re.findall(r"^(\d+)  .* ─+$", said, re.MULTILINE)] == list(range(1, 16))
    assert max(map(len, lines[:-1])) <= 80 and "\x1b" not in said
    row = next(line for line in lines if line.split()[:2] == ["y", str(len(update.trace.y))])
    assert list(map(float, row.split()[2:])) == pytest.approx(statistics_of(update.trace.y), rel=1e-3)
    assert said.count("why: ") == said.count("without it: ") == 15
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == page(update, explained(update))


def test_the_page_needs_nothing_else(update: OneUpdate) -> None:
    html = page(update, explained(update))
    assert re.findall(r'id="step-(\d+)"', html) == [str(number) for number in range(1, 16)]
    assert not re.search(r"https?://|<script|<link|@import|url\(", html)
    assert "&lt;" not in html and "&amp;" not in html, "nothing is escaped twice"
    sources = re.findall(r'src="([^"]*)"', html)
    assert len(sources) == 5
    for source in sources:
        head, _, data = source.partition(",")
        picture = base64.b64decode(data, validate=True).decode()
        assert head == "data:image/svg+xml;base64" and picture.rstrip().endswith("</svg>")
        assert not re.search(r'href="(?!#)|<script|<image', picture)
    assert "prefers-color-scheme: dark" in html and "width=device-width" in html


def test_what_a_run_is_called_is_no_markup(update: OneUpdate) -> None:
    env = replace(update.cfg.env, name="<b>&'")
    html = page(update._replace(title="<script>x</script>", cfg=replace(update.cfg, env=env)), [])
    assert "<script>" not in html and "<b>" not in html and "<script>x</script>" in unescape(html)


def test_the_folder_is_left_as_it_was(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = digests(run_folder)
    assert main(["explain", str(run_folder)]) == 0
    after = digests(run_folder)
    assert after.pop("explain.html", None) is not None and after == before
    (run_folder / "explain.html").unlink()


def test_a_live_run_is_explained_and_not_disturbed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    list(t3d.train(config(tmp_path, "straight")))
    explained_at = []
    for event in t3d.train(config(tmp_path, "live")):
        if isinstance(event, Saved):
            assert main(["explain", str(tmp_path / "live")]) == 0
            explained_at.append(event.step)
    assert len(explained_at) >= 2
    assert_equal(tmp_path / "straight", tmp_path / "live")


@pytest.mark.parametrize(("total_steps", "number"), [(301, 204), (302, 204), (303, 204), (304, 207)])
def test_the_update_is_the_next_one_that_moves_the_actor(tmp_path: Path, total_steps: int, number: int) -> None:
    list(t3d.train(config(tmp_path, td3={"policy_delay": 3}, total_steps=total_steps)))
    update = one_update(open_run(tmp_path / "run"))
    assert (update.number, update.step) == (number, total_steps), "100 steps are random, and 201 to 204 updates made"
    assert update.trace.pi is not None and not torch.equal(update.before["actor"], update.after["actor"])


@pytest.mark.parametrize("choice", CHOICES)
def test_formulas_say_what_the_settings_choose(choice: str) -> None:
    cfg = merge(Config(), {"td3": {"batch_size": 8, "actor_hidden": [8], "critic_hidden": [8], **CHOICES[choice]}})
    update, td3 = made_up(cfg), cfg.td3
    steps = explained(update)
    said = " ".join(step.text.formula for step in steps)
    plain = " ".join(text.formula for text in fifteen_texts(Config(), TD3Config()))
    assert len(steps) == 15 and (said != plain) == (choice != "min of 5")
    *values, kept = map(float, re.findall(NUMBER, steps[7].example.replace("2 Q'", "")))
    ordered = sorted(values)
    expected = {
        "min": [ordered[0]],
        "mean": [sum(values) / len(values)],
        "truncated": [sum(ordered[: -td3.drop_highest]) / (td3.critics - td3.drop_highest)],
        "min_of_random_2": ordered[:-1],
    }[td3.aggregate]
    assert len(values) == td3.critics and any(kept == pytest.approx(one, abs=2e-3) for one in expected)


def test_returns_of_several_steps_priorities_and_one_critic_are_named() -> None:
    changes = {"replay": {"n_step": 3, "sampling": "proportional"}, "td3": {"critics": 1, "target_noise": 0.0}}
    cfg = merge(Config(), {**changes, "normalise_observations": True, "scale_rewards": True})
    formulas = [text.formula for text in fifteen_texts(cfg, cfg.td3, images=True)]
    batch, smoothing, kept, target, loss = (formulas[step - 1] for step in (4, 6, 8, 9, 11))
    for part in ("up to 3 steps", "chosen by their errors", "normalised", "scale of returns", "shifted"):
        assert part in batch
    assert "no noise" in smoothing and "one critic" in kept and "γⁿ" in target and target.count("min") == 1
    assert "mean w · (" in loss and "encoder" in formulas[1] + formulas[11]
    every = fifteen_texts(Config(), TD3Config(policy_delay=1))
    assert all(text.formula.startswith("every update") for text in every[12:])


@pytest.mark.parametrize("critics", [1, 5])
def test_pictures_show_every_critic_and_noise_only_where_there_is_any(critics: int) -> None:
    noise = 0.0 if critics == 1 else 0.2
    update = made_up(merge(Config(), {"td3": {"critics": critics, "batch_size": 8, "target_noise": noise}}))
    pictures = {step: drawn(step, update).decode() for step in PICTURES}
    assert ("before the clip" in pictures[6]) == (noise > 0)
    assert all(words in pictures[8] for words in (">each critic<", ">kept<"))
    blue, orange = ([len(re.findall(f"<use [^>]*{colour}", pictures[step])) for step in (8, 11)] for colour in COLOURS)
    assert blue == [8 * critics + 1, 8 + 1], "a point for each transition, and one in the legend"
    assert orange == [0, 0 if critics == 1 else 8 + 1], "of the second critic; what is kept is a line"


def test_a_rule_of_ones_own_is_shown_without_formulas(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = f"{ROOT / 'tests' / 'ddpg.py'}:DDPG"
    list(t3d.train(config(tmp_path, algo=rule)))
    assert main(["explain", str(tmp_path / "run"), "--own", rule]) == 0
    said = capsys.readouterr().out
    assert "its own" in said and not re.search(r"^\d+  ", said, re.MULTILINE)
    html = (tmp_path / "run" / "explain.html").read_text(encoding="utf-8")
    for name in ("y", "q", "td", "q_pi"):
        assert re.search(rf"^    {name} ", said, re.MULTILINE) and f'title="trace.{name}"' in html


def test_a_run_on_images_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {"batch_size": 8, "actor_hidden": [8], "critic_hidden": [8], "encoder_channels": 4, "encoder_features": 6}
    changes: dict[str, Any] = {"env": {"id": "image_worlds:Dot", "frame_stack": 2}, "td3": small}
    list(t3d.train(config(tmp_path, **changes)))
    update = one_update(open_run(tmp_path / "run"))
    assert update.after["actor_target"].shape != update.after["policy"].shape
    assert main(["explain", str(tmp_path / "run")]) == 0
    assert "images shifted by up to 4 pixels and encoded" in capsys.readouterr().out.replace("\n    ", " ")


def test_the_streams_of_a_gpu_start_anew_on_a_cpu(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_a_gpu(checkpoint: Checkpoint) -> Any:
        saved = state(checkpoint)
        saved["config"]["device"] = "cuda"
        saved["learner"]["target_noise"] = saved["memory"]["sampler"]["streams"] = {"drawn": 7}
        return saved

    state = Checkpoint.state
    monkeypatch.setattr(Checkpoint, "state", of_a_gpu)
    assert one_update(open_run(run_folder)).trace.actor_loss is not None


def test_an_environment_is_trained_a_little_and_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pages, "STEPS", 1_100)
    assert main(["explain", "Pendulum-v1"]) == 0
    said = capsys.readouterr().out
    assert "training Pendulum-v1 for 1,100 steps" in said and "mean return" in said and "15  " in said
    assert [path.name for path in tmp_path.iterdir()] == ["explain.html"]


def test_what_cannot_be_explained_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "foreign").mkdir()
    started = t3d.train(config(tmp_path, "new"))
    next(started)
    sentences = {
        "foreign": "cannot be read as a run",
        "new": "has no checkpoint to take an update from: one is written every 100 steps and when a run stops",
        "Pendulun-v1": "there is no run Pendulun-v1 in runs, and it is no environment either",
    }
    for what, sentence in sentences.items():
        assert main(["explain", what]) == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and sentence in said and said.count("\n") == 1
    assert main(["explain"]) == 2
    started.close()


def test_a_member_that_is_not_there_or_has_diverged_is_refused(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="has no seed 9"):
        one_update(open_run(run_folder), "9")

    def with_stopped(checkpoint: Checkpoint) -> Any:
        return {**state(checkpoint), "stopped": {"seed-0": "its loss is infinite"}}

    state = Checkpoint.state
    monkeypatch.setattr(Checkpoint, "state", with_stopped)
    assert one_update(open_run(run_folder)).member.seed == 4
    with pytest.raises(UserError, match=r"seed 0 of .* has diverged; choose another seed with --seed"):
        one_update(open_run(run_folder), "0")


def test_without_matplotlib_the_page_has_no_pictures(
    run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["explain", str(run_folder), "--out", str(tmp_path / "page.html")]) == 0
    assert "without pictures, which need matplotlib" in capsys.readouterr().out
    html = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert html.count("<section") == 15 and "<figure>" not in html


def test_what_is_wrong_is_said_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, sentence in {
        ("Pendulum-v1", "--seed", "5"): "Pendulum-v1 is an environment, of which one small run is trained",
        ("Pendulum-v1", "--out", "nowhere/x.html"): "cannot write nowhere/x.html: there is no folder nowhere",
        ("--claim", "delay", "--out", "nowhere/x.png"): "cannot write nowhere/x.png: there is no folder nowhere",
    }.items():
        assert main(["explain", *words]) == 2
        said = capsys.readouterr()
        assert sentence in said.err and not said.out


class FailsInTraining(worlds.Failing):
    at = (0, 5)

    @staticmethod
    def fail() -> object:
        raise ValueError("out of paper")


def test_nothing_is_said_of_a_folder_that_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["explain", f"{__name__}:FailsInTraining"]) == 1
    said = capsys.readouterr().err
    assert "out of paper" in said and "resume" not in said and "t3d-explain-" not in said


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"critics": 2}, "kept: the minimum."),
        ({"critics": 2, "aggregate": "mean"}, "kept: the mean over the critics."),
        ({"critics": 5}, "kept: the minimum."),
        (
            {"critics": 5, "aggregate": "truncated", "drop_highest": 2},
            "kept: the mean over the critics without the 2 highest.",
        ),
        ({"critics": 1}, "What the target critic says."),
    ],
)
def test_pictures_say_which_value_is_kept(settings: dict[str, Any], kept: str) -> None:
    update = made_up(merge(Config(), {"td3": {"batch_size": 8, **settings}}))
    assert kept in PICTURES[8].caption(update)
    names_one = "Q_θ2' is kept" in drawn(8, update).decode()
    assert names_one == (settings == {"critics": 2}), "with any other aggregate no single critic's value is kept"
