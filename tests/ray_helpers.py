"""One small Ray cluster for the tests of a process, started by the first that needs it, to which nodes can be added."""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import pytest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (t3d[ray])")
HEAD_CPUS = 2
ATTEMPTS = 3
VARIABLES = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_prestart_worker_first_driver": "0"}
LOOPBACK = "127.0.0.2"  # Ray replaces 127.0.0.1 by an address that others can reach
STORE_BYTES = 100 * 2**20


@functools.cache
def nodes() -> Any:
    """Starts the cluster, a ray.cluster_utils.Cluster, and connects to it; it ends with this process."""
    os.environ.update(VARIABLES)  # workers inherit them
    import ray  # noqa: PLC0415
    from ray.cluster_utils import Cluster  # noqa: PLC0415

    node: dict[str, Any] = {"num_cpus": HEAD_CPUS, "object_store_memory": STORE_BYTES, "node_ip_address": LOOPBACK}
    started = Cluster()
    for attempt in range(ATTEMPTS):
        try:
            started.add_node(**node, include_dashboard=False)
            break
        except Exception:  # Ray raises nothing else when a busy machine takes over half a minute to start a node
            if attempt == ATTEMPTS - 1:
                raise
    ray.init(address=started.address, log_to_driver=False, configure_logging=False)
    return started


def leave() -> None:
    """Ends the cluster, if there is one: other tests start their own."""
    if nodes.cache_info().currsize:
        import ray  # noqa: PLC0415

        ray.shutdown()
        nodes().shutdown()
        nodes.cache_clear()
        for name in VARIABLES:
            os.environ.pop(name, None)


def cluster() -> Any:
    """Returns a connection to it whose close() does nothing."""
    from t3d.actors.ray_cluster import Connection  # noqa: PLC0415

    class Shared(Connection):
        def __init__(self) -> None:
            self.folder, self.warnings, self.known_nodes = None, [], set()

        def lost(self) -> str:
            return ""

        def close(self) -> None:
            pass

    nodes()
    return Shared()
