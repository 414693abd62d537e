"""Starting, joining and leaving a Ray cluster: what is checked, what is said, and what stays private."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest

import helpers
from t3d.actors import ray_cluster
from t3d.actors.checkup import Checkup
from t3d.actors.ray_cluster import (
    READ_BY_RAY,
    SHARED_MEMORY,
    Connection,
    asks_for_token,
    connect,
    split_address,
    store_bytes,
)
from t3d.actors.ray_files import env_there, own_there, runtime_env
from t3d.config import Config, EnvConfig, RunConfig, TD3Config
from t3d.errors import UserError
from t3d.modules import is_installed
from t3d.policy.acting import PolicySnapshot
from t3d.world.make import env_factory

ray = pytest.importorskip("ray", reason="Ray is an extra")

from ray_nodes import VARIABLES, clean, head, node  # noqa: E402

pytestmark = pytest.mark.system

LEARNER = """
import threading
from t3d.actors.ray_cluster import connect
from t3d.config import Config, EnvConfig
connect(Config(actors="ray:2", env=EnvConfig(id="Pendulum-v1")), 2, threading.Event())
import ray, time
class Sleeper:
    def act(self):
        time.sleep(100)
sleeper = ray.remote(Sleeper).remote()
answer = sleeper.act.remote()
ray.wait([answer], timeout=3)
print("acting", flush=True)
time.sleep(100)
"""
TOKEN = "a-token-of-the-tests"
CFG = Config(actors="ray:2", env=EnvConfig(id="Pendulum-v1"))
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def every_test_is_a_process_to_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has Ray read again what it reads only once."""
    real = ray_cluster._import_ray

    def import_ray() -> Any:
        raylet: Any = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()
        monkeypatch.setattr("ray._private.ray_constants.ENABLE_RAY_CLUSTER", False)
        READ_BY_RAY.update(ray_cluster._settings())
        return real()

    monkeypatch.setattr(ray_cluster, "_import_ray", import_ray)


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a cluster that asks for a token."""
    with head(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=TOKEN) as address:
        yield address


def joined(address: str, **changes: Any) -> Connection:
    return connected(replace(CFG, ray_address=address, **changes))


def connected(cfg: Config) -> Connection:
    with Path(os.devnull).open("wb") as nowhere:
        return connect(cfg, nowhere.fileno(), threading.Event())


def in_worker(function: object) -> object:
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file
    return ray.get(ray.remote(num_cpus=0)(function).remote())


class TestOwnCluster:
    def test_listens_on_this_machine_only_admits_only_its_token_and_leaves_nothing_behind(
        self, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def handler(*_: object) -> None: ...

        before_folders = folders_of_clusters()
        before, environment = signal.signal(signal.SIGTERM, handler), dict(os.environ)
        with (tmp_path / "log").open("wb") as log:
            connection = connect(replace(CFG, actors="ray:8"), log.fileno(), threading.Event())
            try:
                assert (tmp_path / "log").read_bytes() == b"", "what a run prints before it has a folder, users see"
                logging.getLogger("ray").warning("a word of Ray")
                assert connection.warnings == [] and connection.lost() == ""
                assert signal.getsignal(signal.SIGTERM) is handler
                assert {listening.laddr.ip for listening in _listening()} <= {"127.0.0.1", "::ffff:127.0.0.1"}
                assert asks_for_token_of_a_stranger(ray.get_runtime_context().gcs_address)
                assert ray.cluster_resources()["CPU"] == 8, "as many as actors reserve"
                assert _idle_workers() == [], "none is started before it is needed"
                assert in_worker(_print_and_say_threads) == "1"
                (folder,) = folders_of_clusters() - before_folders
                assert folder.stat().st_mode & 0o777 == 0o700, "nobody else can enter"
                _until(lambda: b"printed by a worker" in (tmp_path / "log").read_bytes())
                assert b"a word of Ray" in (tmp_path / "log").read_bytes()
            finally:
                connection.close()
                signal.signal(signal.SIGTERM, before)
        assert not folder.exists()
        assert not _listening()
        assert {name for name in environment if os.environ.get(name) != environment[name]} == set()
        assert not any(name in os.environ for name in VARIABLES)
        assert capfd.readouterr() == ("", "")
        assert not (tmp_path / ".ray").exists()  # no token is left for others to find

    @pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
    def test_ends_within_ten_seconds_of_a_learner_that_is_killed(self, tmp_path: Path, ending: signal.Signals) -> None:
        folders, folder = folders_of_clusters(), None
        with (tmp_path / "said.txt").open("w") as said:
            learner = subprocess.Popen([sys.executable, "-c", LEARNER], env=clean(), stdout=said, stderr=said)
            try:
                _until(lambda: "acting" in (tmp_path / "said.txt").read_text())
                processes = psutil.Process(learner.pid).children(recursive=True)
                assert any("ray::Sleeper" in one.name() for one in processes)
                (folder,) = folders_of_clusters() - folders
                learner.send_signal(ending)
                started = time.monotonic()
                _until(lambda: not folder.exists() and not any(map(_is_alive, processes)), 10.0)
                print(f"ended {time.monotonic() - started:.1f} s after {ending.name}")
            finally:
                learner.kill()
                learner.wait()

    def test_settings_that_ray_has_read_already_are_refused(self, tmp_path: Path) -> None:
        """In another process, because ours has been told otherwise; it is the same for another token."""
        with pytest.raises(subprocess.CalledProcessError) as raised:
            subprocess.run(
                [sys.executable, "-c", f"import ray\n{LEARNER}"], env=clean(), capture_output=True, check=True
            )
        assert b"imported Ray before the run" in raised.value.stderr
        assert b"that imports ray after the run has started" in raised.value.stderr

    def test_says_which_extra_to_install_without_ray(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("t3d.errors.find_spec", lambda name: None)
        with pytest.raises(UserError, match=r"t3d\[ray\]"):
            connected(CFG)

    def test_says_so_if_ray_cannot_start_and_leaves_nothing_behind(self, monkeypatch: pytest.MonkeyPatch) -> None:
        folders = folders_of_clusters()
        monkeypatch.setattr(ray_cluster, "store_bytes", lambda free: 1)
        with pytest.raises(UserError, match=r"Ray could not start on this machine: ValueError: .*object store"):
            connected(CFG)
        assert folders_of_clusters() == folders
        assert not any(name in os.environ for name in VARIABLES)

    @pytest.mark.parametrize("culprit", ["subprocess.Popen", "tempfile.mkdtemp"])
    def test_a_system_that_has_run_out_of_something_is_named(
        self, monkeypatch: pytest.MonkeyPatch, culprit: str
    ) -> None:
        def fail(*_: object, **__: object) -> None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        folders = folders_of_clusters()
        monkeypatch.setattr(f"t3d.actors.ray_cluster.{culprit}", fail)
        with pytest.raises(UserError, match=r"Ray could not start on this machine: .*temporarily unavailable"):
            connected(CFG)
        assert folders_of_clusters() == folders

    def test_a_cluster_that_is_not_reached_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def init(**_: object) -> None:
            raise ConnectionError("no raylet here")

        with ExitStack() as opened, pytest.raises(UserError, match="could not start: no raylet here"):
            ray_cluster._init(SimpleNamespace(init=init, shutdown=str), opened, 2, "could not start")

    def test_a_guard_whose_stdin_another_process_holds_is_ended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray_cluster, "CLOSE_SECONDS", 0.5)
        guard = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        assert guard.stdin is not None
        held = os.dup(guard.stdin.fileno())
        try:
            ray_cluster._end(guard)
            assert guard.returncode == -signal.SIGTERM
        finally:
            os.close(held)
            guard.kill()

    def test_takes_at_most_a_part_of_the_shared_memory_and_refuses_too_little(self) -> None:
        assert store_bytes(2**40) == 2**30
        assert store_bytes(500 * 2**20) == 400 * 2**20
        with pytest.raises(UserError, match=f"{SHARED_MEMORY} has 64 MiB free, and Ray needs 125 MiB.*--shm-size"):
            store_bytes(64 * 2**20)


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
        says = r"asks for its token, and there is none here, or another one; copy ~/\.ray/auth_token"
        with pytest.raises(UserError, match=says):
            joined(cluster)
        monkeypatch.setenv("RAY_AUTH_TOKEN", "another")
        with pytest.raises(UserError, match=says):
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
            closing(joined(cluster)) as connection,
        ):
            from t3d.actors.ray_collector import RayCollector  # noqa: PLC0415

            cfg = replace(CFG, actors="ray:3", env=EnvConfig(id="Pendulum-v1", num_envs=3))
            checkup = Checkup([], helpers.make_spec(3, 1), False, {})
            texts: list[str] = []
            with closing(RayCollector(cfg, env_factory(cfg.env), checkup, connection)) as collector:
                network = helpers.mlp(3, 4, 1)
                collector.publish(PolicySnapshot(0, network, np.zeros((1, network.size), np.float32)), 0)

                def told(words: str) -> bool:
                    texts.extend(news.text for news in collector.poll().news)
                    return any(words in text for text in texts)

                _until(lambda: told("on node 127.0.0.3: ModuleNotFoundError: No module named 't3d'"), 90)
                _until(lambda: told("node 127.0.0.4 runs Ray"), 90)
        assert any("T3D 0.0.1; this process" in text for text in texts)

    @pytest.mark.slow
    def test_a_cluster_without_authentication_is_used_with_a_warning_and_its_loss_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ray_cluster, "WATCH_SECONDS", 0.1)
        monkeypatch.setattr(ray_cluster, "LOST_SECONDS", 1.0)
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
        monkeypatch.setattr(ray_cluster, "PROBE_SECONDS", 3.0)
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
        assert env_there(env_id, home) == there
        assert env_there(env_id, None) == f"{home}/{there}"
        assert runtime_env(replace(CFG, env=EnvConfig(id=env_id)), home)["working_dir"] == str(home)

    @pytest.mark.parametrize("env_id", ["Pendulum-v1", "dm:cheetah-run", "gymnasium:Pendulum-v1"])
    def test_what_is_installed_stays_as_it_is_and_nothing_is_sent(self, home: Path, env_id: str) -> None:
        assert env_there(env_id, home) == env_there(env_id, None) == env_id
        assert runtime_env(replace(CFG, env=EnvConfig(id=env_id)), home) == {}

    def test_a_network_of_ones_own_travels_too(self, home: Path) -> None:
        network = f"{home}/lab/arm.py:NETWORK"
        assert own_there(network, home) == "lab/arm.py:NETWORK" and own_there("mlp", home) == "mlp"
        assert runtime_env(replace(CFG, td3=TD3Config(actor_network=network)), home)

    def test_a_file_outside_the_folder_is_refused(self, home: Path) -> None:
        with pytest.raises(UserError, match="start it in the folder of your environment"):
            env_there(f"{home}/my_robot.py:make_env", home / "lab")

    def test_an_editable_package_elsewhere_stays_as_it_is_and_a_file_there_is_refused(
        self, home: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
        (project / "my_editable.py").write_text("")
        for folder in (project, site):
            monkeypatch.syspath_prepend(str(folder))
        with pytest.raises(UserError, match="start it in the folder"):
            env_there("my_editable:make_env", home)
        (info := site / "my_editable-1.0.dist-info").mkdir()
        (info / "METADATA").write_text("Name: my_editable\nVersion: 1.0\n")
        (info / "direct_url.json").write_text(f'{{"dir_info": {{"editable": true}}, "url": "file://{project}"}}')
        assert env_there("my_editable:make_env", home) == "my_editable:make_env"
        with pytest.raises(UserError, match="start it in the folder"):
            env_there(f"{project}/my_editable.py:make_env", home)

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
        assert env_there(f"{link}/lab/arm.py:Arm", home) == "lab/arm.py:Arm"
        assert "/runs" in left_out(f"{link}/runs", home)

    def test_runs_inside_the_folder_are_left_out_wherever_they_are(self, home: Path) -> None:
        assert "/results/td3" in left_out("results/td3", home)
        assert "/runs" in left_out(f"{home}/runs", home)
        assert not any(name.startswith("/") for name in left_out("/data", home))


def left_out(runs: str, home: Path) -> list[str]:
    """What of a folder is not sent, by the root of its runs."""
    cfg = replace(CFG, env=EnvConfig(id="my_robot.py:make_env"), run=RunConfig(root=runs))
    excluded: Any = runtime_env(cfg, home)["excludes"]
    return list(excluded)


def asks_for_token_of_a_stranger(address: str) -> bool:
    """Whether a process without the token is refused."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", f"--address={address}"]
    environment = clean(RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0")
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return asked.returncode != 0 and "InvalidAuthToken" in asked.stderr


def folders_of_clusters() -> set[Path]:
    """Those of clusters that T3D has started on this machine."""
    return {*Path(tempfile.gettempdir()).glob("t3d-ray-*")}


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


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
