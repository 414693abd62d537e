"""t3d report: one file that says what the other commands say, and whatever a run folder holds stays text."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
import t3d
from fake_runs import diagnosis, update, write_run
from html_pages import Seen
from t3d.app.cli import main
from t3d.config import Member
from t3d.data.memory import Memory
from t3d.events import Alarm, Note
from t3d.files import sealed, unsealed
from t3d.insight.best_member import known_choice
from t3d.insight.comparison import compare
from t3d.insight.groups import read_groups
from t3d.insight.ranges import RangeRecorder, ranges_in_training
from t3d.insight.report_facts import MOST_VIDEO_BYTES, gather
from t3d.insight.wording import estimated
from t3d.policy.spec import Image
from t3d.store.checkpoint import newest
from t3d.store.details import videos_of
from t3d.store.reader import open_run

ELEMENTS = {
    *(
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "h2",
        "h3",
        "h4",
        "p",
        "span",
        "div",
        "article",
        "section",
    ),
    *(
        "nav",
        "a",
        "ul",
        "li",
        "dl",
        "dt",
        "dd",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "details",
        "summary",
        "pre",
    ),
    *("footer", "figure", "img", "video"),
}
LOW, HIGH = ({seed: [float(seed + base)] * 4 for seed in range(5)} for base in (0, 100))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    list(t3d.train(helpers.small_config(seeds=[0, 4], run={"root": str(root), "name": "run"})))
    assert main(["eval", str(root / "run"), "--episodes", "7"]) == 0
    return root / "run"


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield


def report(*words: str) -> str:
    assert main(["report", *words, "--out", "out.html"]) == 0
    return Path("out.html").read_text(encoding="utf-8")


def said(*words: str) -> str:
    """The text of a report, without markup."""
    return re.sub(r"\s+", " ", Seen(report(*words)).said)


def test_a_report_has_everything_inside_it_and_no_script(trained: Path) -> None:
    shutil.copytree(trained, "run")
    page = report("run")
    assert {*Seen(page).elements} <= ELEMENTS
    assert "default-src 'none'" in page.replace("&#x27;", "'")
    assert not re.search(r"https?:|@import|url\(", page)
    assert {link[:1] for link in re.findall(r'href="([^"]*)"', page)} <= {"#"}
    pictures = re.findall(r'<img alt="[^"]+" src="data:image/svg\+xml;base64,([^"]*)"', page)
    assert len(pictures) > 15 and page.count("<img") == len(pictures)
    for picture in pictures:
        assert not re.search(r'href="(?!#)|<script|<image|@import', base64.b64decode(picture, validate=True).decode())
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    wanted = ["Verdict", "Model card", "Returns on fresh episodes", "Curves", "What was seen", "Configuration"]
    assert [one for one in headings if one in wanted] == wanted and headings[-1] == "Machine and versions"
    assert len(page) < 1_000_000


def test_what_a_run_folder_says_is_never_markup() -> None:
    nasty = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e"
    name = nasty.replace("/", "|")
    alarm = Alarm(step=1, member=0, seed=0, kind=nasty, text=nasty, advice=nasty)
    events = [alarm, Note(step=1, text=nasty), diagnosis({"step": 5, "member": 0, "seed": 0, "time": 1e9})]
    path = write_run(Path(name), {0: [1.0, 2.0]}, env=nasty, events=events, diverged=[0])
    (path / "notes.json").write_text(json.dumps({"tags": ["<script>"], "note": "</p><script>alert(1)</script>"}))
    log = (
        (path / "events.jsonl")
        .read_text()
        .replace('"cpu": "none"', '"<script>": "<script>"')
        .replace("NaN", "<script>")
    )
    (path / "events.jsonl").write_text(log)
    (path / "config.toml").write_text(f"# {nasty}\n{(path / 'config.toml').read_text()}")
    write_run(Path("runs/<b>other"), {0: [1.0, 2.0]}, env=nasty)
    for page in (report(name), report(name, "runs/<b>other")):
        found = Seen(page)
        assert {*found.elements} <= ELEMENTS
        assert not [key for key in found.attributes if key.startswith("on")]
        assert found.said.count("<script>") >= 8, "it is all there, as text"
        assert "\u202e" not in page


@pytest.mark.parametrize("count", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_a_folder_with_wrong_values_has_a_report_or_is_a_sentence(
    trained: Path, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    values: list[Any] = ["x", "", [], {}, None, -1, 0.5, True, 10**30, 10**400, 1e300, [0] * 50, {"x": {}}]
    lines = [json.loads(line) for line in (trained / "events.jsonl").read_bytes().splitlines()]
    kinds = {line["event"]: line for line in lines}  # the last of each
    cases = [(kind, field, value) for kind, line in kinds.items() for field in line for value in values]
    for number, (kind, field, value) in enumerate([("start", "time", 10**400), *random.Random(0).sample(cases, count)]):
        path = Path(shutil.copytree(trained, str(number), ignore=shutil.ignore_patterns("checkpoints")))
        wrong = json.dumps({**kinds[kind], field: value}) + "\n"
        for name in ("events.jsonl", "journal.jsonl"):
            kept = (path / name).read_text()
            first = wrong + kept.partition("\n")[2] if kind == "start" else kept + wrong
            (path / name).write_text(first)
        code, said = main(["report", str(path)]), capsys.readouterr().err
        assert code == 0 or (code == 2 and said.count("\n") == 1), (kind, field, value, said)


def test_fresh_episodes_are_those_of_t3d_eval(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(trained, "run")
    text = said("run")
    capsys.readouterr()
    assert main(["eval", "run", "--episodes", "7", "--json"]) == 0
    played = json.loads(capsys.readouterr().out)
    low, high = played["interval"]
    assert f"returned {played['mean']:,.1f} [{low:,.1f}, {high:,.1f}] on average over 7 fresh episodes" in text
    assert f"best policy of seed {played['seed']}, of step {played['step']:,}" in text


def test_ranges_in_training_are_those_of_the_whole_replay(trained: Path) -> None:
    run = open_run(trained)
    checkpoint, _ = newest(trained / "checkpoints")
    assert checkpoint is not None
    policy = run.policy(Member(4), "last")
    memory = Memory(policy.spec, run.cfg, "cpu", run.cfg.td3.gamma)
    memory.restore(checkpoint.state()["memory"])
    checkpoint.fill(memory.replay, 1, "seed-4")
    rows = memory.replay.contents(1, *memory.replay.kept(1))["rows"]
    seen = ranges_in_training(run, Member(4), policy.spec)
    assert seen is not None and seen.transitions == len(rows) == 300
    states = np.concatenate([rows[:, :3], rows[:, -3:]])
    assert np.array_equal(seen.observations, [states.min(axis=0), states.max(axis=0)])
    assert np.allclose(seen.actions, [[2 * rows[:, 3].min()], [2 * rows[:, 3].max()]])  # Pendulum's are within 2
    assert np.array_equal(seen.rewards, [[rows[:, 4].min()], [rows[:, 4].max()]])


class Counting(gym.Env[Any, Any]):
    """Observes how many steps its episode has had, of ten."""

    observation_space = gym.spaces.Box(0, 100, (1,), np.float32)
    action_space = gym.spaces.Box(-3, 1, (1,), np.float32)

    def reset(self, **_: Any) -> Any:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return np.full(1, self.steps, np.float32), float(action[0]), False, self.steps == 10, {}


def test_the_last_observation_of_an_episode_was_seen_too(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": "", "name": "counting"}, run={"root": str(tmp_path), "name": "run"})
    list(t3d.train(cfg, make_env=lambda **_: Counting()))
    run = open_run(tmp_path / "run")
    seen = ranges_in_training(run, Member(0), run.policy(Member(0)).spec)
    assert seen is not None
    assert (*seen.observations.low, *seen.observations.high) == (0.0, 10.0)
    assert -3 <= seen.actions.low[0] < -2 and 0 < seen.actions.high[0] <= 1
    assert np.allclose(seen.actions, seen.rewards, atol=1e-6)  # the reward is the action


def test_a_policy_that_is_watched_acts_the_same_and_keeps_what_it_saw(trained: Path) -> None:
    policy = open_run(trained).policy(Member(0))
    watched, rng = RangeRecorder(policy.actor, policy.spec), np.random.default_rng(0)
    shown = [rng.normal(size=(4, 3)).astype(np.float32) for _ in range(5)]
    acted = [watched(one) for one in shown]
    assert all(np.array_equal(did, policy.actor(one)) for did, one in zip(acted, shown, strict=True))
    assert watched.ranges is not None and watched.ranges.transitions == 20
    states, actions = np.concatenate(shown), 2 * np.concatenate(acted).astype(np.float64)
    assert np.array_equal(watched.ranges.observations, [states.min(axis=0), states.max(axis=0)])
    assert np.allclose(watched.ranges.actions, [actions.min(axis=0), actions.max(axis=0)])


IMAGES: dict[str, Any] = {
    "td3": {"batch_size": 8, "actor_hidden": [8], "critic_hidden": [8], "encoder_channels": 4, "encoder_features": 6},
    **{"total_steps": 60, "random_steps": 30, "eval": {"every_steps": 30, "episodes": 1}, "threads": 1},
}


@pytest.mark.parametrize(
    ("env", "names"),
    [
        ({"id": "image_worlds:WithVector", "frame_stack": 3}, ["['place'] 0", "['place'] 1"]),
        ({"id": "image_worlds:TwoCameras"}, ["['rest'][1]"]),
        ({"id": "image_worlds:Dot", "max_action_change": 0.2}, ["previous action 0"]),
        ({"id": "image_worlds:Dot"}, []),
    ],
    ids=["two values", "one value", "the previous action", "nothing else"],
)
def test_what_a_policy_sees_beside_images_is_listed(tmp_path: Path, env: dict[str, Any], names: list[str]) -> None:
    list(t3d.train(helpers.small_config(**IMAGES, env=env, run={"root": str(tmp_path), "name": "run"})))
    assert main(["eval", "run", "--root", ".", "--episodes", "30"]) == 0
    best = gather(Path("run"), "run", 0).best
    seen = best and best.fresh_ranges
    assert seen is not None and len(seen.observations.low) == len(names)
    assert (seen.observations.low >= -1).all() and (seen.observations.high <= 1).all()
    assert (seen.observations.low < seen.observations.high).all()
    page = report("run")
    listed = re.findall(r"<tr><t[hd][^>]*>([^<]*)", html.unescape(page).partition("What was seen")[2])
    assert listed[1 : listed.index("action 0")] == names
    alone = "It was trained on images, whose range is not listed"
    assert (alone in page) == (not names)


def test_every_kind_of_alarm_is_told_however_many_there_are(tmp_path: Path) -> None:
    kinds = ["early"] * 5 + ["late"] * 205
    events = [Alarm(step=step, member=0, seed=0, kind=kind, text=kind, advice="") for step, kind in enumerate(kinds)]
    path = write_run(tmp_path / "many", {0: [1.0]}, events=events)
    early, late = gather(path, "many", 0).alarms
    assert "early" in early and "late" in late


def test_a_vector_beside_images_is_read_from_its_bytes(trained: Path) -> None:
    spec = open_run(trained).policy(Member(0)).spec._replace(images=(Image((), (1, 2, 2), 0, 4),))
    vectors = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    flat = np.concatenate([vectors.view(np.uint8), np.full((6, 4), 255, np.uint8)], axis=1)
    watched = RangeRecorder(lambda shown: np.zeros((len(shown), 1), np.float32), spec)
    watched(flat)
    assert watched.ranges is not None
    assert np.array_equal(watched.ranges.observations, [vectors.min(axis=0), vectors.max(axis=0)])


def test_without_checkpoints_the_ranges_are_those_of_the_fresh_episodes(trained: Path) -> None:
    shutil.copytree(trained, "run", ignore=shutil.ignore_patterns("checkpoints"))
    text = said("run")
    assert "no checkpoint with its replay. The ranges below are of the fresh episodes." in text
    assert "observation 2" in text


def test_several_runs_are_compared_with_the_figures_of_t3d_compare() -> None:
    write_run(Path("runs/low"), LOW)
    write_run(Path("runs/high"), HIGH, td3={"gamma": 0.9})
    text = said("low", "high")
    found = compare(read_groups(["low", "high"], Path("runs")))
    second = found.rows[1]
    assert f"{second.verdict}." in text and "high is better than low" in text
    for row in found.rows:
        assert f"{row.name}5{estimated(row.mean)}{estimated(row.iqm)}" in text
    assert estimated(second.improvement, "{:.2f}".format) in text
    assert "td3.gamma0.990.9" in text


def test_runs_of_the_same_name_are_told_apart() -> None:
    write_run(Path("x/run"), LOW, td3={"gamma": 0.98})
    write_run(Path("y/run"), HIGH, td3={"gamma": 0.95})
    assert "settingx/runy/runtd3.gamma0.980.95" in said("x/run", "y/run")


def test_runs_on_different_tasks_are_reported_one_by_one() -> None:
    write_run(Path("runs/a"), LOW)
    write_run(Path("runs/b"), LOW, env="Hopper-v5")
    page = report("a", "b")
    assert "These runs are not compared: a was trained on Pendulum-v1, but b on Hopper-v5" in Seen(page).said
    assert page.count("<h4>Return of evaluations</h4>") == 2


def test_the_verdict_says_whether_it_learned_and_what_went_wrong() -> None:
    write_run(Path("runs/up"), {seed: [0.0, 10.0 + seed, 11.0 + seed, 12.0 + seed] for seed in range(5)})
    write_run(Path("runs/down"), {seed: [0.0, -10.0 - seed, -11.0, -12.0] for seed in range(5)})
    write_run(Path("runs/flat"), {seed: [0.0, float(seed) - 2, 2 - float(seed), 0.0] for seed in range(5)})
    assert "It learned: the mean return went from 0.00 before learning to 13.0 [" in said("up")
    assert "It became worse: the mean return went from" in said("down")
    assert "These seeds do not show that it learned" in said("flat")
    write_run(Path("runs/new"), {0: [-5.0], 1: [-7.0]})
    assert "It has not been evaluated since it began to learn; before, its mean return was -6.00." in said("new")
    write_run(Path("runs/short"), {0: [0.0, 1.0]})
    assert "at the end, the mean of the last evaluation of 1 seed" in said("short")
    write_run(Path("runs/two"), {0: [0.0, 1.0, 3.0]})
    text = said("two")
    assert "to 2.00 [no interval] at the end, the mean of the last 2 evaluations of 1 seed" in text
    alarm = Alarm(step=2000, member=0, seed=0, kind="dead-units", text="half of the units are dead.", advice="rest.")
    write_run(Path("runs/bad"), LOW, events=[alarm], diverged=[3])
    text = said("bad")
    assert "seed 3 diverged at step 3,001 and stopped: NaN" in text and "1 kind of alarm sounded" in text
    assert "Alarm at step 2,000, seed 0: half of the units are dead. Try: rest." in text


def test_a_sweep_is_compared_value_by_value() -> None:
    returns = {place: [0.0, float(place)] for place in range(4)}  # of two seeds with each value
    write_run(Path("runs/sweep"), returns, seeds=[0, 1], sweep=["td3.gamma=0.9,0.99"])
    text = said("sweep")
    assert "The highest mean of last evaluations is 2.50, with td3.gamma=0.99." in text
    assert "gamma=0.99 is better than gamma=0.9" in text


def test_a_run_that_was_never_evaluated_has_a_report() -> None:
    write_run(Path("runs/new"), {}, seeds=[0], events=[update(0, 0, step, 1.0) for step in (100, 200)])
    text = said("new")
    assert "There is no policy to report on" in text and "Values and targets" in text


def test_events_of_a_member_that_the_run_does_not_have_are_left_out() -> None:
    foreign = [update(0, 5, 1000, 1.0), diagnosis({"step": 1000, "member": 0, "seed": 5, "time": 1e9})]
    write_run(Path("runs/a"), {0: [1.0, 2.0]}, events=foreign)
    page = report("a")
    assert re.findall(r"<h4>(.*?)</h4>", page) == ["Return of evaluations"]


@pytest.mark.parametrize("env", ["Nowhere-v1", "nowhere:make", ""])
def test_an_environment_that_is_not_here_has_a_report(trained: Path, env: str) -> None:
    path = Path(shutil.copytree(trained, "elsewhere"))
    for file in ("config.toml", "events.jsonl"):
        text = (path / file).read_text()
        (path / file).write_text(text.replace('"Pendulum-v1"', f'"{env}"'))
    fresh = unsealed("fresh", (path / "best" / "fresh.json").read_bytes())
    fresh["choice"]["basis"]["env"] = env
    (path / "best" / "fresh.json").write_bytes(sealed("fresh", fresh))
    assert said(str(path)).count("on average over 7 fresh episodes") == 2, "in the verdict and on the card"
    (path / "best" / "fresh.json").unlink()
    text = said(str(path))
    assert text.count(f"has played no fresh episodes yet; t3d eval {path} plays them. Its best evaluation was") == 2
    assert "Returns on fresh episodes" not in text


def test_a_video_is_inside_unless_it_is_too_large() -> None:
    path = write_run(Path("runs/a"), LOW)
    (path / "videos").mkdir()
    (path / "videos" / "seed-0-step-1000.mp4").write_bytes(b"newest")
    found = re.search(r'src="data:video/mp4;base64,([^"]*)"', report("a"))
    assert found is not None and base64.b64decode(found[1]) == b"newest"
    with (path / "video.mp4").open("wb") as file:
        file.truncate(MOST_VIDEO_BYTES + 1)
    text = said("a")
    assert "video.mp4, 10.0 MiB, is not in this report" in text


def test_the_video_is_of_the_seed_that_the_report_is_about_and_says_whose_it_is(trained: Path) -> None:
    path = Path(shutil.copytree(trained, "run"))
    run = open_run(path)
    choice = known_choice(run)
    assert choice is not None
    member = choice.member
    other = next(one for one in run.cfg.members if one != member)
    best = run.policy(member).about["step"]
    shown = f"It shows the policy of {member.title} at step"
    (path / "video.mp4").write_bytes(b"of whom?")
    assert "The file does not say which policy it shows." in said("run")
    (path / "videos").mkdir()
    (path / "videos" / f"{member.name}-step-{best}.mp4").write_bytes(b"its own")
    (path / "videos" / f"{other.name}-step-9000.mp4").write_bytes(b"newest")
    assert f"{shown} {best:,}." in said("run")
    (path / "videos" / f"{member.name}-step-{best}.mp4").rename(path / "videos" / f"{member.name}-step-7000.mp4")
    assert f"{shown} 7,000, not the one above." in said("run")
    (path / "videos" / f"{member.name}-step-7000.mp4").unlink()
    (path / "video.mp4").unlink()
    assert f"It shows the policy of {other.title} at step 9,000, not the one" in said("run")


def test_a_video_of_t3d_record_says_whose_policy_it_shows_until_it_is_replaced(trained: Path) -> None:
    path = Path(shutil.copytree(trained, "run"))
    run = open_run(path)
    for member in run.cfg.members:
        best = run.policy(member).about["step"]
        assert main(["record", "run", "--seed", member.name, "--steps", "3"]) == 0
        assert f"It shows the policy of {member.title} at step {best:,}" in said("run")
        [video] = videos_of(path)
        assert (video["file"], video["member"], video["step"]) == ("video.mp4", member.name, best)
    (path / "video.mp4").write_bytes(b"of whom?")
    assert "The file does not say which policy it shows." in said("run")


def test_mistakes_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    write_run(Path("runs/a"), LOW)
    for words, why in (
        ([], "name at least one run"),
        (["a", "--episodes", "9"], "unknown flag --episodes"),
        (["nothing"], "there is no run named nothing"),
        (["a", "--out", "no/folder.html"], "there is no folder no"),
        (["a", "--out", "runs"], "cannot write runs: it is a folder"),
    ):
        assert main(["report", *words]) == 2
        assert why in capsys.readouterr().err


def test_the_default_file_is_in_the_runs_folder_or_here() -> None:
    write_run(Path("runs/a"), LOW)
    write_run(Path("runs/b"), HIGH)
    assert main(["report", "a"]) == 0 and Path("runs/a/report.html").is_file()
    assert main(["report", "a", "b"]) == 0 and Path("report.html").is_file()
