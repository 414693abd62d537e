"""Starting, joining and leaving a Ray cluster: what is checked, what is said, and what stays private."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from t3d.actors import ray_checks
from t3d.actors.ray_checks import QUESTION, asks_for_token, split_address
from t3d.actors.ray_cluster import (
    MARK,
    MARKER,
    SHARED_MEMORY,
    Connection,
    _private_folder,
    actor_options,
    connect,
    store_bytes,
)
from t3d.actors.ray_files import excluded, for_machines, needs_files
from t3d.config import Config, EnvConfig, RunConfig, TD3Config
from t3d.errors import UserError
from t3d.modules import is_installed

ray = pytest.importorskip("ray", reason="Ray is an extra")

from ray_nodes import VARIABLES, clean, head, node  # noqa: E402

TOKEN = "a-token-of-the-tests"
CFG = Config(actors="ray:2", env=EnvConfig(id="Pendulum-v1"))
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that asks for a token."""
    with head(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as address:
        yield address


def joined(address: str, **changes: Any) -> Connection:
    return connect(replace(CFG, ray_address=address, **changes))


def in_worker(function: object) -> object:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    return ray.get(ray.remote(num_cpus=0)(function).remote())


class TestOwnCluster:
    def test_listens_on_this_machine_only_admits_only_its_token_and_leaves_nothing_behind(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("t3d.actors.ray_cluster.differences", list)  # which would start a worker

        def handler(*_: object) -> None: ...

        before, environment = signal.signal(signal.SIGTERM, handler), dict(os.environ)
        with (tmp_path / "log").open("wb") as log:
            connection = connect(replace(CFG, actors="ray:8"), log.fileno())
            try:
                assert connection.warnings == [] and connection.lost() == ""
                assert signal.getsignal(signal.SIGTERM) is handler
                assert {listening.laddr.ip for listening in _listening()} <= {"127.0.0.1", "::ffff:127.0.0.1"}
                assert asks_for_token_of_a_stranger(ray.get_runtime_context().gcs_address)
                assert ray.cluster_resources()["CPU"] == 8, "as many as actors reserve"
                assert _idle_workers() == [], "none is started before it is needed"
                assert in_worker(_print_and_say_threads) == "1"
                opened_by_ray = Path(ray._private.worker._global_node.get_temp_dir_path())
                folder = opened_by_ray.parent
                assert opened_by_ray.is_dir() and folder.stat().st_mode & 0o777 == 0o700, "nobody else can enter"
                _until(lambda: b"printed by a worker" in (tmp_path / "log").read_bytes())
            finally:
                connection.close()
                signal.signal(signal.SIGTERM, before)
        assert not folder.exists()
        assert not _listening()
        assert {name for name in environment if os.environ.get(name) != environment[name]} == set()
        assert not any(name in os.environ for name in VARIABLES)
        assert capfd.readouterr() == ("", "")
        assert not (tmp_path / ".ray").exists()  # no token is left for others to find

    def test_folders_of_processes_that_were_killed_are_removed_and_no_others(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        names = ("t3d-ray-killed", "t3d-ray-in-use", "t3d-ray-results", "t3d-2024-results", "target")
        killed, in_use, results, older, target = (tmp_path / name for name in names)
        for folder in (killed, in_use, results, older, target):
            (folder / "ray").mkdir(parents=True)
        for folder in (killed, in_use, target):
            (folder / MARKER).write_bytes(MARK)
        (results / MARKER).write_text("this is mine")
        (link := tmp_path / "t3d-ray-link").symlink_to(target)
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        with (in_use / MARKER).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with _private_folder() as own:
                assert not killed.exists() and in_use.is_dir()
                assert results.is_dir() and older.is_dir(), "folders of the user"
                assert link.is_symlink() and (target / "ray").is_dir()
                with _private_folder() as second:
                    assert own.is_dir() and second.is_dir(), "another run leaves it alone"
        assert not own.exists() and not second.exists()

    def test_says_which_extra_to_install_without_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"t3d\[ray\]"):
            connect(CFG)

    def test_says_so_if_ray_cannot_start_and_leaves_nothing_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def too_busy(**_: object) -> None:
            raise Exception("The current node\ntimed out")  # noqa: TRY002 (as Ray does)

        monkeypatch.setattr(ray, "init", too_busy)
        with pytest.raises(UserError, match="Ray could not start on this machine: The current node timed out"):
            connect(CFG)
        assert not any(name in os.environ for name in VARIABLES)

    def test_takes_at_most_a_part_of_the_shared_memory_and_refuses_too_little(self) -> None:
        assert store_bytes(2**40) == 2**30
        assert store_bytes(500 * 2**20) == 400 * 2**20
        with pytest.raises(UserError, match=f"{SHARED_MEMORY} has 64 MiB free, and Ray needs 125 MiB.*--shm-size"):
            store_bytes(64 * 2**20)

    def test_actors_are_spread_take_a_fraction_of_a_cpu_and_are_never_restarted_by_ray(self) -> None:
        options = actor_options(replace(CFG, ray_cpus=0.25))
        assert options == {
            "num_cpus": 0.25,
            "scheduling_strategy": "SPREAD",
            "max_restarts": 0,
            "max_task_retries": 0,
        }


class TestJoining:
    def test_with_the_token_it_works_without_a_word(
        self, cluster: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        connection = joined(cluster)
        try:
            assert connection.warnings == []
            assert in_worker(_print_and_say_threads) == "1"
        finally:
            connection.close()
        assert not ray.is_initialized()
        assert capfd.readouterr() == ("", "")
        joined(cluster).close()  # the cluster is still there

    def test_the_token_may_be_in_the_home_folder(self, cluster: str, tmp_path: Path) -> None:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text(TOKEN)
        joined(cluster).close()

    def test_without_a_token_or_with_another_it_says_where_tokens_are(
        self, cluster: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        with pytest.raises(UserError, match=r"asks for a token, and there is none here; copy ~/\.ray/auth_token"):
            joined(cluster)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
        with pytest.raises(UserError, match="refuses this token"):
            joined(cluster)
        assert capfd.readouterr() == ("", "")

    def test_a_process_that_uses_ray_already_is_told_so(self, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        connection = joined(cluster)
        try:
            with pytest.raises(UserError, match=r"ray\.shutdown\(\)"):
                joined(cluster)
            assert ray.is_initialized()
        finally:
            connection.close()

    def test_files_of_the_folder_reach_the_workers_but_not_runs_and_hidden_files(
        self, cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        for name in ("lab/robot.py", "lab/arm.xml", "runs/one/events.jsonl", ".env", ".git/config", "venv/big"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text("def make_env(): ...\n")
        monkeypatch.chdir(tmp_path)
        env = EnvConfig(id=f"{tmp_path}/lab/robot.py:make_env")
        connection = joined(cluster, env=env)
        try:
            assert connection.for_actors(replace(CFG, env=env)).env.id == "lab/robot.py:make_env"
            assert in_worker(_files_here) == ["lab/arm.xml", "lab/robot.py"]
        finally:
            connection.close()
        assert capfd.readouterr() == ("", "")

    @pytest.mark.slow
    def test_nodes_with_another_version_or_without_t3d_are_named(
        self, cluster: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
        none, other = tmp_path / "none", tmp_path / "other"
        _without_t3d(none)
        _with_version(other, "0.0.1")
        auth = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        with (
            node(f"--address={cluster}", "--node-ip-address=127.0.0.3", **auth, PYTHONPATH=str(none)),
            node(f"--address={cluster}", "--node-ip-address=127.0.0.4", **auth, PYTHONPATH=str(other)),
        ):
            connection = joined(cluster)
            try:
                lacking, older = sorted(connection.warnings)
            finally:
                connection.close()
        assert lacking == "node 127.0.0.3 has no T3D; install it there"
        assert older.startswith("node 127.0.0.4 runs Ray") and "T3D 0.0.1; this process" in older

    @pytest.mark.slow
    def test_a_cluster_without_authentication_is_used_with_a_warning_and_its_loss_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_checks, "WATCH_SECONDS", 0.1)
        monkeypatch.setattr(ray_checks, "LOST_SECONDS", 1.0)
        with head() as address:
            connection = joined(address)
        try:
            (warning,) = connection.warnings
            assert "runs without authentication" in warning
            _until(lambda: connection.lost() != "")
            assert "has not answered for 1 s" in connection.lost(), "its head, or this machine's Ray: both are gone"
        finally:
            started = time.monotonic()
            connection.close()
        assert time.monotonic() - started < 20  # it does not wait for what is gone


class TestAddress:
    @pytest.mark.parametrize("address", ["auto", "ray://head:10001", "head", "head:", "head:0", "head:99999", ":6379"])
    def test_must_be_host_and_port(self, address: str) -> None:
        with pytest.raises(UserError, match="is not HOST:PORT"):
            split_address(address)

    def test_nothing_there(self) -> None:
        with pytest.raises(UserError, match=r"nothing answers at ray_address=127\.0\.0\.1:1 "):
            joined("127.0.0.1:1")

    def test_something_else_there(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_checks, "PROBE_SECONDS", 3.0)
        with (
            socket.create_server(("127.0.0.1", 0)) as other,
            pytest.raises(UserError, match="is not the head of a Ray cluster"),
        ):
            asks_for_token(f"127.0.0.1:{other.getsockname()[1]}")


class TestFiles:
    @pytest.fixture(autouse=True)
    def home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        for name in ("my_robot.py", "lab/__init__.py", "lab/arm.py"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in ("my_robot", "lab", "lab.arm"):  # of another test's folder
            monkeypatch.delitem(sys.modules, name, raising=False)
        return tmp_path

    @pytest.mark.parametrize(
        ("env_id", "there"),
        [
            ("my_robot:make_env", "my_robot.py:make_env"),
            ("my_robot.py:make_env", "my_robot.py:make_env"),
            ("my_robot.py", "my_robot.py"),
            ("lab.arm:Arm", "lab/arm.py:Arm"),
            ("lab:Arm-v0", "lab/__init__.py:Arm-v0"),
        ],
    )
    def test_own_files_are_found_in_the_copy_and_on_this_disk(self, home: Path, env_id: str, there: str) -> None:
        cfg = replace(CFG, env=EnvConfig(id=env_id))
        assert for_machines(cfg, home).env.id == there
        assert for_machines(cfg, None).env.id == f"{home}/{there}"
        assert needs_files(cfg, home)

    @pytest.mark.parametrize("env_id", ["Pendulum-v1", "dm:cheetah-run", "gymnasium:Pendulum-v1"])
    def test_what_is_installed_stays_as_it_is_and_nothing_is_sent(self, home: Path, env_id: str) -> None:
        cfg = replace(CFG, env=EnvConfig(id=env_id))
        assert for_machines(cfg, home) == for_machines(cfg, None) == cfg
        assert not needs_files(cfg, home)

    def test_a_network_of_ones_own_travels_too(self, home: Path) -> None:
        cfg = replace(CFG, td3=TD3Config(actor_network=f"{home}/lab/arm.py:NETWORK"))
        assert for_machines(cfg, home).td3.actor_network == "lab/arm.py:NETWORK"

    def test_a_file_outside_the_folder_is_refused(self, home: Path) -> None:
        cfg = replace(CFG, env=EnvConfig(id=f"{home}/my_robot.py:make_env"))
        with pytest.raises(UserError, match="start it in the folder of your environment"):
            for_machines(cfg, home / "lab")

    def test_an_editable_package_elsewhere_stays_as_it_is_and_a_file_there_is_refused(
        self, home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
        (project / "my_editable.py").write_text("")
        for folder in (project, site):
            monkeypatch.syspath_prepend(str(folder))
        cfg = replace(CFG, env=EnvConfig(id="my_editable:make_env"))
        with pytest.raises(UserError, match="start it in the folder"):
            for_machines(cfg, home)
        (info := site / "my_editable-1.0.dist-info").mkdir()
        (info / "METADATA").write_text("Name: my_editable\nVersion: 1.0\n")
        (info / "direct_url.json").write_text(f'{{"dir_info": {{"editable": true}}, "url": "file://{project}"}}')
        assert for_machines(cfg, home) == cfg
        with pytest.raises(UserError, match="start it in the folder"):
            for_machines(replace(CFG, env=EnvConfig(id=f"{project}/my_editable.py:make_env")), home)

    def test_what_the_user_or_the_system_has_installed_is_installed(
        self, home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        theirs = tmp_path_factory.mktemp("theirs")
        for name in ("getusersitepackages", "getsitepackages"):
            with monkeypatch.context() as patched:
                patched.setattr(f"site.{name}", lambda *, name=name: str(theirs) if "user" in name else [str(theirs)])
                assert is_installed(f"{theirs}/lab/__init__.py") and not is_installed(f"{home}/my_robot.py")
        assert not is_installed(f"{theirs}/lab/__init__.py")

    def test_a_path_through_a_link_is_the_same_path(self, home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
        (link := tmp_path_factory.mktemp("links") / "home").symlink_to(home)
        cfg = replace(CFG, env=EnvConfig(id=f"{link}/lab/arm.py:Arm"), run=RunConfig(root=f"{link}/runs"))
        assert for_machines(cfg, home).env.id == "lab/arm.py:Arm"
        assert "/runs" in excluded(cfg, home)

    def test_runs_inside_the_folder_are_left_out_wherever_they_are(self, home: Path) -> None:
        assert "/results/td3" in excluded(replace(CFG, run=RunConfig(root="results/td3")), home)
        assert "/runs" in excluded(replace(CFG, run=RunConfig(root=f"{home}/runs")), home)
        assert not any(name.startswith("/") for name in excluded(replace(CFG, run=RunConfig(root="/data")), home))


def asks_for_token_of_a_stranger(address: str) -> bool:
    """Whether a process without the token is refused."""
    command = [sys.executable, "-c", QUESTION, address]
    asked = subprocess.run(command, env=clean(), capture_output=True, text=True, check=False)
    return asked.returncode != 0 and "InvalidAuthToken" in asked.stderr


def _listening() -> list[Any]:
    """The ports on which this process and its descendants listen."""
    here = psutil.Process()
    found = []
    for process in [here, *here.children(recursive=True)]:
        try:
            found += [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
        except psutil.Error:
            continue
    return found


def _idle_workers() -> list[psutil.Process]:
    """The Python processes that wait for actors or tasks."""
    return [one for one in psutil.Process().children(recursive=True) if one.name() == "ray::IDLE"]


def _print_and_say_threads() -> str:
    print("printed by a worker")
    return os.environ["OPENBLAS_NUM_THREADS"]


def _files_here() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*") if path.is_file())


def _without_t3d(folder: Path) -> None:
    folder.mkdir()
    (folder / "t3d.py").write_text("raise ModuleNotFoundError(\"No module named 't3d'\", name='t3d')\n")


def _with_version(folder: Path, version: str) -> None:
    """A T3D that differs from this one only in its version."""
    package = folder / "t3d"
    package.mkdir(parents=True)
    for part in (ROOT / "src" / "t3d").iterdir():
        if part.name not in ("version.py", "__pycache__"):
            (package / part.name).symlink_to(part)
    (package / "version.py").write_text(f'__version__ = "{version}"\n')


def _until(condition: object, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        threading.Event().wait(0.05)
