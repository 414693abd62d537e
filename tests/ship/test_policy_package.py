"""t3d-policy: what load_policy needs, with NumPy and safetensors alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import numpy as np
import pytest

from shipped_policies import ABOUT, of_images, of_vectors, vector_spec
from t3d.policy.files import save_policy
from t3d.ship.export import export_policy

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "packages" / "t3d-policy"
ALLOWED = {"numpy", "safetensors", "t3d"}
BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in {allowed} and top not in sys.stdlib_module_names and top[0] != "_":
            raise ModuleNotFoundError(f"{{name}} is not allowed", name=name)
sys.meta_path.insert(0, Block())
"""
ACT = """
import numpy as np, t3d
policy = t3d.load_policy({run!r})
print(policy)
np.save({out!r}, policy(np.linspace(-1, 1, 15).reshape(3, 5)))
pictures = t3d.load_policy({pictures!r})
seen = {{"wide": np.zeros((34, 32, 3), np.uint8), "near": np.zeros((1, 32, 33), np.uint8), "speed": [0.0, 1.0]}}
assert np.isfinite(pictures(seen)).all()
smooth = t3d.load_policy({smooth!r})
controller, action = smooth.controller(), smooth.initial_action
for _ in range(3):
    action = smooth(np.zeros(5), action)
    assert np.array_equal(controller(np.zeros(5)), action)
for wrong in ({checkpoint!r}, {exported!r}):
    try:
        t3d.load_policy(wrong)
    except t3d.UserError as error:
        print(error)
try:
    t3d.train
except ImportError as error:
    print(error)
"""


@pytest.fixture
def code(tmp_path: Path) -> str:
    """A program that acts with saved policies, and tries what it cannot load."""
    policy, pictures = of_vectors(scaled=True), of_images()
    smooth = of_vectors(spec=vector_spec()._replace(max_action_change=0.1))
    (tmp_path / "run").mkdir()
    save_policy(tmp_path / "run" / "best" / "seed-3", policy.snapshot, 0, policy.spec, ABOUT)
    save_policy(tmp_path / "pictures", pictures.snapshot, 0, pictures.spec, ABOUT)
    save_policy(tmp_path / "smooth", smooth.snapshot, 0, smooth.spec, ABOUT)
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "manifest.json").write_text("{}")
    (tmp_path / "policy.onnx").write_text("")
    paths = {name: name for name in ("run", "pictures", "smooth", "checkpoint")} | {"exported": "policy.onnx"}
    return ACT.format(**{name: str(tmp_path / path) for name, path in paths.items()}, out=str(tmp_path / "acted.npy"))


def check(said: str, tmp_path: Path) -> None:
    first, *others = said.splitlines()
    assert first == "<best policy of Toy-v0, seed 3, step 12,000: 5 values -> mlp -> 3 actions>"
    assert (
        len(others) == 3
        and "a checkpoint, the state of training, needs" in others[0]
        and "pip install t3d" in others[0]
    )
    assert (
        "an ONNX file needs onnx" in others[1]
        and others[2] == "t3d.train is not part of t3d-policy; install t3d instead"
    )
    wanted = of_vectors(scaled=True)(np.linspace(-1, 1, 15).reshape(3, 5))
    np.testing.assert_array_equal(np.load(tmp_path / "acted.npy"), wanted)


def test_the_modules_of_the_package_are_enough_and_need_nothing_else(tmp_path: Path, code: str) -> None:
    settings = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    for source, target in settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        copied = tmp_path / "site" / target
        copied.parent.mkdir(parents=True, exist_ok=True)
        origin = PACKAGE / source
        shutil.copytree(origin, copied) if origin.is_dir() else shutil.copy(origin, copied)
    program = BLOCK.format(allowed=ALLOWED) + code
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    check(done.stdout, tmp_path)


def test_the_package_states_the_same_versions_as_t3d() -> None:
    whole, part = (tomllib.loads((folder / "pyproject.toml").read_text())["project"] for folder in (ROOT, PACKAGE))
    assert set(part["dependencies"]) <= set(whole["dependencies"])
    assert part["optional-dependencies"]["onnx"] == whole["optional-dependencies"]["export"]
    assert part["requires-python"] == whole["requires-python"]


@pytest.mark.slow
def test_it_runs_in_an_empty_environment(tmp_path: Path, code: str) -> None:
    venv.create(tmp_path / "env", with_pip=True)
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-q", "-c", str(ROOT / "constraints.txt")]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)

    if run(*pip, "hatchling", "numpy", "safetensors").returncode:
        pytest.skip("pip reaches no package index here")
    done = run(*pip, "--no-build-isolation", str(PACKAGE))
    assert done.returncode == 0, done.stderr
    installed = run(python, "-m", "pip", "list", "--format=freeze").stdout
    assert "t3d-policy==" in installed and "torch" not in installed and "gymnasium" not in installed
    done = run(python, "-c", code)
    assert done.returncode == 0, done.stderr
    check(done.stdout, tmp_path)
    if run(*pip, "onnx", "onnxruntime").returncode == 0 and pytest.importorskip("onnxruntime"):
        export_policy(of_vectors(), tmp_path / "exported.onnx", "onnx", {})
        done = run(python, "-c", f"import t3d; print(t3d.load_policy({str(tmp_path / 'exported.onnx')!r})([0.0] * 5))")
        assert done.returncode == 0 and str(of_vectors()([0.0] * 5)[0])[:5] in done.stdout, done.stderr
