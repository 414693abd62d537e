"""Settings that a rule of the user's own declares in its file: flags, help, TOML, sweeps, checks and resume."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import helpers
import t3d
from run_folders import folder_of, run, weights
from t3d.app.train import parse
from t3d.config import Config, merge, to_dict, to_toml
from t3d.config.presets import as_config
from t3d.errors import UserError
from t3d.events import Start

RULE = '''
from typing import NamedTuple

from t3d.algo.coefficients import rowwise
from t3d.algo.rules import Rule
from t3d.algo.td3 import Coefficients, td3_init, td3_update
from t3d.config import TD3Config
from t3d.config.fields import setting


class ScaledConfig(TD3Config, prefix="own."):
    """TD3's settings, and one more."""

    reward_scale: float = setting(1.0, between=(0, 10), sweep=True)
    """What rewards are multiplied by."""


Numbers = NamedTuple("Numbers", [(name, float) for name in (*Coefficients._fields, "reward_scale")])


def coefficients(cfg):
    return Numbers(*(getattr(cfg, name) for name in Numbers._fields))


def update(agent, batch, draws, cfg, numbers, phase):
    scaled = batch._replace(r=batch.r * rowwise(numbers.reward_scale, batch.r))
    return td3_update(agent, scaled, draws, cfg, numbers, phase)


RULE = Rule(td3_init, update, settings=ScaledConfig, coefficients=coefficients)
MISNAMED = RULE._replace(settings=type("Misnamed", (TD3Config,), {}, prefix="mine."))
'''
SMALL = {"actor_hidden": [16, 16], "critic_hidden": [16, 16], "batch_size": 16}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "scaled_rule.py"
    path.write_text(RULE)
    return f"{path}:RULE"


def config(file: str, **changes: Any) -> Config:
    return merge(helpers.small_config(td3=_defaults()), {"algo": file, **changes})


def _defaults() -> dict[str, Any]:
    return {name: getattr(Config().td3, name) for name in ("actor_hidden", "critic_hidden", "batch_size")}


def test_flags_are_read_as_declared_and_written_to_toml(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = parse(["Pendulum-v1", "--algo", file, "--own.reward-scale", "3", "--own.actor-hidden", "8", "9"]).cfg
    assert (cfg.section, cfg.own["reward_scale"], cfg.own["actor_hidden"], cfg.own["tau"]) == (
        "own",
        3.0,
        [8, 9],
        0.005,
    )
    assert merge(Config(), tomllib.loads(to_toml(cfg))) == cfg
    with pytest.raises(SystemExit):
        parse(["Pendulum-v1", "--algo", file, "--help"])
    assert "What rewards are multiplied by." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"own": {"reward_scale": 20}}, "own.reward_scale=20 is out of range; it must be between 0 and 10"),
        ({"own": {"reward_scal": 2}}, "unknown key own.reward_scal, did you mean reward_scale"),
        ({"td3": {"tau": 0.3}}, "td3.tau=0.3 is not used: the settings of"),
        ({"algo": "td3", "own": {"reward_scale": 2}}, "own.reward_scale is for a rule of your own, and algo=td3"),
        ({"algo": "ddpg:DDPG", "own": {"tau": 0.1}}, "ddpg:DDPG declares no settings of its own, so own.tau is"),
        ({"sweep": ["own.critics=1,2"]}, "own.critics cannot be swept; these can: own.gamma,"),
        ({"algo": "MISNAMED"}, "are called mine., and must be called own.; write class Misnamed(..., prefix='own.')"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_folder_exists(
    file: str, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    if changes.get("algo") == "MISNAMED":
        changes = {"algo": file.replace(":RULE", ":MISNAMED")}
    with pytest.raises(UserError, match=re.escape(words)):
        list(t3d.train(config(file, **changes, run={"root": str(tmp_path / "runs")})))
    assert not (tmp_path / "runs").exists()


def test_what_a_preset_says_of_td3_is_left_out(file: str, tmp_path: Path) -> None:
    root = {"root": str(tmp_path)}
    cfg = as_config(
        {"preset": "quick", "algo": file, "env": {"id": "Pendulum-v1"}, "eval": {"episodes": 1}, "run": root}
    )
    start = next(iter(t3d.train(cfg)))
    assert isinstance(start, Start)
    assert start.config["td3"] == to_dict(Config())["td3"] and start.config["own"]["gamma"] == 0.99
    assert parse(["--config", f"{start.folder}/config.toml"]).cfg.own == start.config["own"]


def test_a_run_with_them_sweeps_and_resumes_to_the_last_bit(file: str, tmp_path: Path) -> None:
    cfg = config(file, own=SMALL, sweep=["own.reward_scale=0.5,2"], threads=1, total_steps=300)
    straight = both(folder_of(run(cfg, tmp_path / "straight")))
    assert not np.array_equal(straight[0], straight[1])
    alone = run(merge(cfg, {"sweep": [], "own": {**SMALL, "reward_scale": 2}}), tmp_path / "alone")
    np.testing.assert_array_equal(weights(alone), straight[1])
    half = folder_of(run(merge(cfg, {"total_steps": 200}), tmp_path / "half"))
    list(t3d.resume(half, total_steps=300))
    np.testing.assert_array_equal(both(half), straight)
    text = (half / "config.toml").read_text()
    (half / "config.toml").write_text(text.replace("reward_scale = 1.0", "reward_scale = 3.0"))
    with pytest.raises(UserError, match=r"own.reward_scale=3.0 \(it was started with 1.0\)"):
        list(t3d.resume(half, total_steps=350))


def both(folder: Path) -> list[np.ndarray[Any, Any]]:
    names = [f"reward_scale-{value}-seed-0" for value in ("0.5", "2")]
    return [load_file(folder / "last" / f"{name}.safetensors")["actor"] for name in names]
