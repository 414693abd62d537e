"""load_policy finds the policy in a run folder or a checkpoint, and never runs code that a file names."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import helpers
import t3d
from t3d.app.cli import main
from t3d.errors import UserError
from t3d.files import sealed, unsealed
from t3d.policy.architectures import KINDS


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    cfg = helpers.small_config(run={"root": str(root), "name": "two"}, seeds=[4, 5], checkpoint={"every_steps": 60})
    list(t3d.train(cfg))
    return root / "two"


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "two"))


def test_a_run_folder_gives_the_policy_with_the_highest_evaluation(run: Path) -> None:
    each = [t3d.load_policy(run / "best" / f"seed-{seed}") for seed in (4, 5)]
    best = max(each, key=lambda policy: policy.about["mean_return"])
    assert each[0].about["mean_return"] != each[1].about["mean_return"]
    assert t3d.load_policy(run).sha256 == t3d.load_policy(str(run)).sha256 == best.sha256
    assert [t3d.load_policy(run, seed=seed).about["seed"] for seed in (4, "5", "seed-4")] == [4, 5, 4]


def test_a_checkpoint_gives_the_policy_at_its_step(run: Path) -> None:
    first, *_, last = sorted((run / "checkpoints").glob("0*"))
    policies = [t3d.load_policy(folder, seed=4) for folder in (first, last)]
    assert policies[0].about["step"] < policies[1].about["step"] and policies[0].sha256 != policies[1].sha256
    assert policies[0].about["kind"] == "checkpoint" and policies[0]([0.1, 0.2, 0.3]).shape == (1,)


def sentences(run: Path) -> dict[str, str]:
    newest = max((run / "checkpoints").glob("0*"))
    found = {}
    tries: dict[str, Callable[[], object]] = {
        "another seed": lambda: t3d.load_policy(run, seed=7),
        "a seed of several": lambda: t3d.load_policy(newest),
        "another seed of a checkpoint": lambda: t3d.load_policy(newest, seed=7),
        "no run": lambda: t3d.load_policy(run.parent),
        "nothing": lambda: t3d.load_policy(run / "nothing"),
    }
    for name, load in tries.items():
        with pytest.raises(UserError) as caught:
            load()
        found[name] = str(caught.value)
    return found


def test_what_is_not_there_is_said_in_a_sentence(run: Path) -> None:
    said = sentences(run)
    assert "has no policy of seed 7; it has seed-4, seed-5" in said["another seed"]
    assert "holds the seeds seed-4, seed-5; choose one" in said["a seed of several"]
    assert "holds the seeds seed-4, seed-5; choose one" in said["another seed of a checkpoint"]
    assert "it is not a run, or was never evaluated" in said["no run"]
    assert "no policy at" in said["nothing"]


def test_what_cannot_choose_anything_is_refused_instead_of_ignored(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    stem, newest, file = run / "best" / "seed-4", max((run / "checkpoints").glob("0*")), tmp_path / "policy.onnx"
    assert main(["export", str(run), "--seed", "4", "--out", str(file)]) == 0
    own = KINDS["mlp"]
    tries: list[tuple[Callable[[], object], str]] = [
        (lambda: t3d.load_policy(stem, seed=99), "holds one policy: it takes no seed"),
        (lambda: t3d.load_policy(run / "nothing", seed=4), "no policy at"),
        (lambda: t3d.load_policy(file, seed=4), "holds one policy: it takes no seed"),
        (lambda: t3d.load_policy(file, network=own), "is an ONNX file: it takes no network"),
        (lambda: t3d.load_policy(newest, network=own, seed=4), "is a checkpoint: it takes no network"),
    ]
    for load, sentence in tries:
        with pytest.raises(UserError, match=sentence):
            load()


@pytest.mark.parametrize("name", ["manifest.json", "state.json", "state.safetensors"])
def test_a_changed_checkpoint_is_refused(run: Path, name: str) -> None:
    newest = max((run / "checkpoints").glob("0*"))
    content = bytearray((newest / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newest / name).write_bytes(content)
    with pytest.raises(UserError, match="is not a checkpoint that T3D can use"):
        t3d.load_policy(newest, seed=4)


@pytest.mark.parametrize("setting", ["algo", "actor_network", "critic_network"])
def test_a_checkpoint_never_chooses_what_code_runs(run: Path, tmp_path: Path, setting: str) -> None:
    hostile = tmp_path / "hostile.py"
    hostile.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    newest = max((run / "checkpoints").glob("0*"))
    own = f"{hostile}:{setting}"
    content = (newest / "state.json").read_text()
    old = '"algo":"td3"' if setting == "algo" else f'"{setting}":"mlp"'
    assert content.count(old) == 1
    changed = content.replace(old, f'"{setting}":"{own}"').encode()
    (newest / "state.json").write_bytes(changed)
    fields = unsealed("manifest", (newest / "manifest.json").read_bytes())
    fields["files"] = [
        [name, len(changed), hashlib.sha256(changed).hexdigest()] if name == "state.json" else [name, size, sha]
        for name, size, sha in fields["files"]
    ]
    (newest / "manifest.json").write_bytes(sealed("manifest", fields))
    with pytest.raises(UserError, match="your own code, and a file never chooses what code runs"):
        t3d.load_policy(newest, seed=4)
    assert not (tmp_path / "ran").exists()
