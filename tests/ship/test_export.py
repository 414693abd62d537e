"""`t3d export`: one complete file, or one sentence that says why not; loading it again refuses what was changed."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import helpers
import t3d
from shipped_policies import of_images, of_vectors, vector_spec
from t3d.app.cli import main
from t3d.errors import UserError
from t3d.files import sealed, unsealed
from t3d.ship import export
from t3d.ship.c_source import c_source
from t3d.ship.export import compiler, export_policy

WITH_COMPILER = pytest.mark.skipif(compiler() is None, reason="there is no C compiler here")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run of two seeds."""
    root = tmp_path_factory.mktemp("runs")
    cfg = helpers.small_config(run={"root": str(root), "name": "two"}, seeds=[0, 1], normalise_observations=True)
    list(t3d.train(cfg))
    return root / "two"


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime")
    export_policy(of_vectors(scaled=True), tmp_path / "policy.onnx", "onnx", {"run": "toy"})
    return tmp_path / "policy.onnx"


@pytest.mark.parametrize("policy", ["best", "last"])
def test_the_command_writes_one_file_that_acts_as_the_policy(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str
) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "policy.onnx"
    assert main(["export", str(run), "--seed", "1", "--policy", policy, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert str(out) in said and "on 10,000 observations it differs from the policy by at most" in said
    assert [file.name for file in tmp_path.iterdir()] == ["policy.onnx"], "no external data"
    ours, theirs = t3d.load_policy(run / policy / "seed-1"), t3d.load_policy(out)
    assert ours.sha256 == theirs.sha256 and repr(ours) == repr(theirs)
    seen = np.random.default_rng(0).normal(size=(20, ours.spec.observation_size))
    np.testing.assert_allclose(ours(seen), theirs(seen), atol=1e-5)


def test_the_file_says_what_it_is(run: Path, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    out = tmp_path / "policy.onnx"
    main(["export", str(run), "--seed", "0", "--out", str(out)])
    model = onnx.load(out)
    said = {one.key: one.value for one in model.metadata_props}
    policy = t3d.load_policy(run / "best" / "seed-0")
    assert said["environment"] == policy.about["env"] and said["policy_sha256"] == policy.sha256
    assert "shape (3,)" in said["observation_space"] and "float32 of shape (1,)" in said["action_space"]
    assert said["run"] == "two" and said["rule"] == "td3" and int(said["evaluations"]) > 0
    assert [(one.domain, one.version) for one in model.opset_import] == [("", 17)]
    (given,), (returned,) = model.graph.input, model.graph.output
    assert given.type.tensor_type.shape.dim[0].dim_param == returned.type.tensor_type.shape.dim[0].dim_param == "batch"


def test_another_runtime_needs_only_the_file(exported: Path) -> None:
    """The inputs and outputs are those that docs/shipping.md names."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(exported))
    for count in (1, 3, 128):
        seen = np.random.default_rng(count).normal(size=(count, 5)).astype(np.float32)
        (action,) = session.run(["action"], {"observation": seen})
        np.testing.assert_allclose(action, of_vectors(scaled=True)(seen), atol=1e-5)


def test_images_are_given_as_the_environment_returns_them(tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    policy, rng = of_images(stack=2), np.random.default_rng(0)
    export_policy(policy, tmp_path / "policy.onnx", "onnx", {})
    session = onnxruntime.InferenceSession(str(tmp_path / "policy.onnx"))
    wide = rng.integers(0, 256, (1, 2, 34, 32, 3), dtype=np.uint8)
    near = rng.integers(0, 256, (1, 2, 1, 32, 33), dtype=np.uint8)
    speed = rng.normal(size=(1, 2)).astype(np.float32)
    (action,) = session.run(["action"], {"observation": speed, "image_0": wide, "image_1": near})
    loaded = t3d.load_policy(tmp_path / "policy.onnx")
    for one in (policy, loaded):
        one({"wide": wide[0, 0], "near": near[0, 0], "speed": np.zeros(2)})
        np.testing.assert_allclose(
            one({"wide": wide[0, 1], "near": near[0, 1], "speed": speed[0]}), action[0], atol=1e-6
        )


@WITH_COMPILER
def test_c_is_one_file_that_compiles_alone(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "policy.c"
    assert main(["export", str(run), "--seed", "0", "--format", "c", "--out", str(out)]) == 0
    source = out.read_text(encoding="ascii")
    assert [line for line in source.splitlines() if line.startswith("#")] == ["#include <math.h>"]
    assert "malloc" not in source
    program = tmp_path / "main.c"
    program.write_text(
        '#include <math.h>\n#include <stdio.h>\n#include "policy.c"\n'
        "int main(void) { float seen[3] = {0.5f, -0.25f, 1.0f}, action[1] = {7};\n"
        'printf("%d ", t3d_act(seen, action)); printf("%.9g ", action[0]);\n'
        'seen[1] = NAN; action[0] = 7; printf("%d %g\\n", t3d_act(seen, action), action[0]); return 0; }\n'
    )
    subprocess.run([str(compiler()), "-std=c99", str(program), "-o", str(tmp_path / "main"), "-lm"], check=True)
    ok, action, refused, untouched = subprocess.check_output([tmp_path / "main"], text=True).split()
    wanted = t3d.load_policy(run / "best" / "seed-0")([0.5, -0.25, 1.0])
    assert (ok, refused, untouched) == ("1", "0", "7") and float(action) == pytest.approx(float(wanted[0]), abs=1e-5)


@pytest.mark.parametrize("kind", ["mlp", "layer_norm", "residual"])
def test_c_reuses_its_buffers(kind: str) -> None:
    policy = of_vectors(kind, "elu", (32, 32, 32), scaled=True)
    text = c_source(policy.snapshot, policy.spec, [])
    buffers = dict(re.findall(r"^    float (\w+)\[(\d+)\];$", text, re.MULTILINE))
    assert buffers == {"input": "5", "b0": "32", "b1": "32", "b2": "128" if kind == "residual" else "32"}


def test_what_others_say_cannot_leave_the_comment() -> None:
    policy = of_vectors()
    hostile = "*/ int main(void) { return 1; } /* \n#error out \\ ü ??/"
    text = c_source(policy.snapshot, policy.spec, [hostile, hostile + "\\"])
    comment, _, code = text.partition(" */\n")
    assert "*/" not in comment and "/*" not in comment[2:] and "main" not in code and "#error" not in code
    assert all(line.startswith((" *", "/*")) and not line.endswith("\\") for line in comment.splitlines())


def test_images_and_own_networks_are_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"policies of images cannot be exported to C; .*--format onnx"):
        export_policy(of_images(), tmp_path / "policy.c", "c", {})
    own = of_vectors()
    own.snapshot = own.snapshot._replace(architecture=own.snapshot.architecture._replace(name="mine.py:net"))
    for kind in ("onnx", "c"):
        with pytest.raises(UserError, match=r"network mine\.py:net is your own code, which cannot be exported"):
            export_policy(own, tmp_path / "policy", kind, {})
    assert list(tmp_path.iterdir()) == []


def test_a_run_with_an_own_network_is_refused_before_it_is_imported(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = (run / "config.toml").read_text()
    copied = tmp_path / "own"
    copied.mkdir()
    (copied / "config.toml").write_text(config.replace('actor_network = "mlp"', 'actor_network = "nowhere.py:net"'))
    (copied / "events.jsonl").write_bytes((run / "events.jsonl").read_bytes())
    assert main(["export", str(copied)]) == 2
    assert "network nowhere.py:net is your own code" in capsys.readouterr().err


MISTAKES: dict[str, tuple[list[str], str]] = {
    "no such run": (["export", "nowhere"], "there is no run named nowhere"),
    "no run": (["export"], "RUN"),
    "an unknown format": (["export", "RUN", "--format", "tflite"], "tflite"),
    "an unknown seed": (["export", "RUN", "--seed", "9", "--out", "OUT/x.onnx"], "has no seed 9"),
    "an existing file": (["export", "RUN", "--seed", "0", "--out", "OUT/old.onnx"], "exists already"),
    "no folder": (["export", "RUN", "--seed", "0", "--out", "OUT/none/x.onnx"], "there is no folder"),
    "a folder that takes no files": (
        ["export", "RUN", "--seed", "0", "--out", "/proc/x.onnx"],
        "cannot write /proc/x.onnx",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mistake: str) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "old.onnx").write_text("old")
    words, said = MISTAKES[mistake]
    given = [word.replace("RUN", str(run)).replace("OUT", str(tmp_path)) for word in words]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1 and "Traceback" not in error
    assert (tmp_path / "old.onnx").read_text() == "old"


def test_a_run_without_a_policy_is_one_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("config.toml", "events.jsonl"):
        (tmp_path / name).write_bytes((run / name).read_bytes())
    assert main(["export", str(tmp_path), "--seed", "0"]) == 2
    assert "no policy at" in capsys.readouterr().err


def test_without_the_extra_a_sentence_says_what_to_install(run: Path, tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['onnx'] = None\n"
        "from t3d.app.cli import main\n"
        f"sys.exit(main(['export', {str(run)!r}, '--seed', '0', '--out', {str(tmp_path / 'x.onnx')!r}]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and 'needs onnx; install with: pip install "t3d[export]"' in done.stderr


def test_without_a_compiler_c_is_written_and_says_that_it_was_not_compared(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(export, "COMPILERS", ())
    assert main(["export", str(run), "--seed", "0", "--format", "c", "--out", str(tmp_path / "policy.c")]) == 0
    assert "not compared with the policy, because there is no C compiler here" in capsys.readouterr().out


def test_files_of_an_earlier_version_act_as_then() -> None:
    """They are loaded only if they have the graph that this version writes."""
    pytest.importorskip("onnxruntime")
    folder, seen = Path(__file__).parents[1] / "fixtures" / "exported-by-0.5.0", np.linspace(-1, 1, 5)
    limited = vector_spec()._replace(max_action_change=0.1)
    policy, loaded = (
        of_vectors("residual", "silu", (4, 4), True, spec=limited),
        t3d.load_policy(folder / "residual.onnx"),
    )
    np.testing.assert_allclose(loaded(seen, np.zeros(3)), policy(seen, np.zeros(3)), atol=1e-5)
    assert repr(t3d.load_policy(folder / "images.onnx")) == repr(of_images("layer_norm", "gelu"))


def test_flipped_bits_are_refused(exported: Path) -> None:
    content = exported.read_bytes()
    for bit in random.Random(5).sample(range(8 * len(content)), 300):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        exported.write_bytes(changed)
        with pytest.raises(UserError, match=r"policy\.onnx is not a policy that T3D exported"):
            t3d.load_policy(exported)


def rewritten(file: Path, change: Any, **about: Any) -> None:
    """Changes a model and gives it the right hashes again."""
    onnx = pytest.importorskip("onnx")
    from t3d.policy.onnx_policy import hash_of_model  # noqa: PLC0415 (an extra)

    model = onnx.load(file)
    change(onnx, model)
    said = {one.key: one.value for one in model.metadata_props}
    fields = {**unsealed("t3d", said["t3d"].encode()), **about, "model_sha256": hash_of_model(model)}
    onnx.helper.set_model_props(model, {**said, "t3d": sealed("t3d", fields).decode()})
    file.write_bytes(model.SerializeToString())


def put_elsewhere(onnx: Any, model: Any) -> None:
    onnx.external_data_helper.set_external_data(model.graph.initializer[2], "/etc/hostname")
    model.graph.initializer[2].ClearField("raw_data")


def grown(onnx: Any, model: Any) -> None:
    """Twice as wide each time: a bomb."""
    last = model.graph.node[-1]
    for count in range(40):
        model.graph.node.insert(
            len(model.graph.node) - 1, onnx.helper.make_node("Concat", [last.input[0]] * 2, [f"x{count}"], axis=1)
        )
        last.input[0] = f"x{count}"


def nothing(onnx: Any, model: Any) -> None:
    pass


HOSTILE: dict[str, tuple[Any, dict[str, Any]]] = {
    "numbers in another file": (put_elsewhere, {}),
    "a bomb": (grown, {}),
    "an operation of another domain": (lambda _, model: setattr(model.graph.node[3], "domain", "evil"), {}),
    "another operation": (lambda _, model: setattr(model.graph.node[4], "op_type", "If"), {}),
    "another network": (nothing, {"network": {"name": "mlp", "sizes": [5, 64, 64, 3], "activation": "relu"}}),
    "a huge network": (nothing, {"network": {"name": "mlp", "sizes": [5, 2**31, 2**31, 3], "activation": "relu"}}),
    "an own network": (nothing, {"network": {"name": "x.py:net", "sizes": [5, 32, 32, 3], "activation": "relu"}}),
    "other actions": (nothing, {"action_shape": [4]}),
    "a step that is none": (nothing, {"step": "many"}),
    "not scaled": (nothing, {"scaled": False}),
}


@pytest.mark.parametrize("lie", HOSTILE)
def test_a_file_with_right_hashes_that_is_not_ours_is_refused(exported: Path, lie: str) -> None:
    change, about = HOSTILE[lie]
    rewritten(exported, nothing)
    t3d.load_policy(exported)
    rewritten(exported, change, **about)
    with pytest.raises(UserError, match=r"policy\.onnx is not a policy that T3D exported"):
        t3d.load_policy(exported)


@pytest.mark.parametrize("content", [b"", b"junk", b"\x80\x04K\x01.", bytes(1000)])
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes) -> None:
    pytest.importorskip("onnxruntime")
    (tmp_path / "x.onnx").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.onnx is not a policy that T3D exported"):
        t3d.load_policy(tmp_path / "x.onnx")
    with pytest.raises(UserError, match="there is no file"):
        t3d.load_policy(tmp_path / "y.onnx")
