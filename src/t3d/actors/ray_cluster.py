"""The Ray cluster on which actors run: joined, or started on this machine."""

from __future__ import annotations

import importlib.util
import os
import signal
import tempfile
from typing import Any

from t3d.actors.supervisor import ONE_THREAD
from t3d.config import Config
from t3d.errors import UserError


class Connection:
    """A cluster in use."""

    def __init__(self, cfg: Config, warnings: list[str]) -> None:
        self.cfg, self.warnings = cfg, warnings

    def lost(self) -> str:
        """Returns why the cluster is lost for good, or an empty string; never waits."""
        return ""

    def close(self) -> None:
        """Leaves the cluster, and ends it if it is our own."""
        import ray  # noqa: PLC0415

        ray.shutdown()


def connect(cfg: Config, output: int | None = None) -> Connection:
    """Joins the cluster at cfg.ray_address, or starts one on this machine."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(f'actors={cfg.actors} needs Ray; install it with: pip install "t3d[ray]"')
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray  # noqa: PLC0415

    handler = signal.getsignal(signal.SIGTERM)
    options: dict[str, Any] = (
        {"address": cfg.ray_address}
        if cfg.ray_address
        else {
            "address": "local",
            "num_cpus": cfg.async_actors + 4,
            "object_store_memory": 200 * 2**20,
            "_node_ip_address": "127.0.0.1",
            "_temp_dir": tempfile.mkdtemp(prefix="t3d-ray-"),
            "include_dashboard": False,
        }
    )
    ray.init(runtime_env={"env_vars": dict(ONE_THREAD)}, log_to_driver=False, configure_logging=False, **options)
    signal.signal(signal.SIGTERM, handler)
    return Connection(cfg, [])


def actor_options(cfg: Config) -> dict[str, Any]:
    """Returns Ray's options for one actor; restarting it is our own task, so that nothing happens twice."""
    spread = {"num_cpus": cfg.ray_cpus, "scheduling_strategy": "SPREAD"}
    return {**spread, "max_restarts": 0, "max_task_retries": 0}
