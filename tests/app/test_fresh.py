"""The return that is shown of a finished run is that of fresh episodes; the best evaluation is called what it is."""

from __future__ import annotations

import io
import json
import random
import re
import shutil
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import helpers
from dash_client import client_of
from faults import rewrite_policy
from t3d.app.cli import main
from t3d.files import sealed, unsealed
from t3d.insight.wording import number_text
from t3d.store.metrics import best_of
from t3d.store.reader import open_run

SMALL = ["--total-steps", "200", "--random-steps", "100", "--td3.batch-size", "16", "--threads", "1", "--no-video"]
SMALL += ["--td3.actor-hidden", "16", "--td3.critic-hidden", "16", "--eval.every-steps", "50", "--eval.episodes", "2"]
EPISODES = 6  # three times eval.episodes


class Lucky(gym.Env[Any, Any]):
    """A return is a draw: the best of many evaluations says little about the next one."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        luck = float(self.np_random.normal()) + float(action[0])
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), luck, False, self.t == 5, {}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Runs of one seed and of two, and what was printed about them."""
    root, printed = tmp_path_factory.mktemp("trained") / "runs", dict[str, str]()
    for name, seeds in {"one": "0", "two": "0,7"}.items():
        command = ["train", "test_fresh:Lucky", *SMALL, "--seeds", seeds, "--run.root", str(root), "--run.name", name]
        with redirect_stdout(io.StringIO()) as written:
            assert main(command) == 0
        printed[name] = written.getvalue()
    return {"": str(root), **printed}


@pytest.fixture
def runs(trained: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(trained[""], tmp_path / "runs"))


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def best_evaluation(run: Path, seed: int) -> str:
    evals = next(found for member, found in open_run(run).evals.items() if member.seed == seed)
    best = best_of(evals)
    returned = f"{number_text(best.mean_return)} ± {number_text(best.std_return)}"
    return f"best evaluation {returned} (step {best.step:,}, chosen from {len(evals)})"


def test_a_finished_run_is_shown_with_its_return_on_fresh_episodes(
    trained: dict[str, str], runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = answer(capsys, "eval", "one", "--episodes", str(EPISODES))
    returned = f"{number_text(played['mean'])} ± {number_text(played['std'])} over {EPISODES} fresh episodes"
    assert f"seed 0: mean return {returned}" in trained["one"], "the same episodes as t3d eval plays"
    assert best_evaluation(runs / "one", 0) in trained["one"]
    assert "at its best" not in trained["one"] + trained["two"]
    assert re.search(r"seed [07] is the best of 2 seeds: mean return \S+ ± \S+ over 6 fresh episodes", trained["two"])
    assert all(best_evaluation(runs / "two", seed) in trained["two"] for seed in (0, 7))


def test_lists_the_dashboard_and_the_report_show_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = answer(capsys, "eval", "two", "--episodes", "1")["member"]
    for name, member in {"one": "seed-0", "two": chosen}.items():
        [listed] = [one for one in answer(capsys, "runs") if one["name"] == name]
        fresh = listed["fresh"]
        assert (fresh["member"], fresh["episodes"]) == (member, EPISODES)
        assert fresh["low"] < fresh["mean"] < fresh["high"] and fresh["std"] > 0
        assert answer(capsys, "runs", "show", name)["fresh"] == fresh
        assert client_of(runs).get(f"/api/runs/{name}").json()["fresh"] == fresh
        for command in (["runs"], ["runs", "show", name]):
            assert main(command) == 0
            assert number_text(fresh["mean"]) in (said := capsys.readouterr().out) and "fresh episodes" in said
            assert "?" not in said
        assert main(["report", name]) == 0
        page = (runs / name / "report.html").read_text(encoding="utf-8")
        assert f"returned {number_text(fresh['mean'])} [" in page and f"over {EPISODES} fresh episodes" in page


def test_a_run_whose_policy_has_changed_or_that_was_never_played_shows_its_best_evaluation_as_such(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "one" / "best" / "fresh.json").unlink()
    for seed in (0, 7):
        other = {"actor": np.zeros(helpers.mlp(2, 16, 1).size, np.float32)}
        rewrite_policy(runs / "two" / "best" / f"seed-{seed}", {}, other)
    for listed in answer(capsys, "runs"):
        assert listed["fresh"] is None and listed["best_return"] is not None
    assert main(["runs", "show", "one"]) == 0
    assert "t3d eval" in (said := capsys.readouterr().out) and "best: the highest of 5" in said
    assert main(["report", "one"]) == 0
    assert "t3d eval" in (runs / "one" / "report.html").read_text(encoding="utf-8")


def test_eval_records_what_it_played_and_more_episodes_count_more(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "one" / "best" / "fresh.json").unlink()
    for episodes, kept in ((6, 6), (9, 9), (7, 9), (4, 9)):  # fewer than are played at the end count for nothing
        played = answer(capsys, "eval", "one", "--episodes", str(episodes))
        fresh = answer(capsys, "runs", "show", "one")["fresh"]
        assert fresh["episodes"] == kept
        assert episodes != kept or fresh["mean"] == pytest.approx(played["mean"])
    before = (runs / "one" / "best" / "fresh.json").read_bytes()
    assert main(["eval", "one", "--episodes", "20", "--env", "test_fresh:Lucky"]) == 0
    rewrite_policy(runs / "one" / "last" / "seed-0", {}, {"actor": np.zeros(helpers.mlp(2, 16, 1).size, np.float32)})
    assert main(["eval", "one", "--episodes", "20", "--policy", "last"]) == 0
    assert (runs / "one" / "best" / "fresh.json").read_bytes() == before, "another environment, another policy"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b'{"fresh": {}, "sha256": ""}', b"[" * 100_000])
def test_results_that_were_damaged_are_not_shown(
    runs: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    file = runs / "one" / "best" / "fresh.json"
    file.write_bytes(content or file.read_bytes().replace(b"1", b"2", 1))
    assert [one["fresh"] for one in answer(capsys, "runs") if one["name"] == "one"] == [None]
    assert main(["eval", "one", "--episodes", str(EPISODES)]) == 0, "and are replaced"
    assert answer(capsys, "runs", "show", "one")["fresh"]["episodes"] == EPISODES


def test_results_with_wrong_values_are_not_shown_and_no_error(runs: Path) -> None:
    file = runs / "one" / "best" / "fresh.json"
    fields = unsealed("fresh", file.read_bytes())
    right = fields["results"]["seed-0"]
    values: list[Any] = ["x", None, True, -1, 1e301, [], {}, [[1], [2]]]
    for name in (*right, "other"):
        for value in random.Random(name).sample(values, 3):
            fields["results"]["seed-0"] = {**right, name: value}
            file.write_bytes(sealed("fresh", fields))
            assert main(["runs"]) == 0 and main(["runs", "show", "one"]) == 0, (name, value)
        assert main(["report", "one"]) == 0, (name, value)
    file.write_bytes(sealed("fresh", {"chosen": "", "results": {"../../two/best/seed-0": right}}))
    assert main(["runs"]) == 0
