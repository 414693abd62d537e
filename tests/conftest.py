"""For all tests: one torch thread per process, because they run side by side, and no network but loopback (R22).

Examples of property tests may take their time, because the machine may be busy.

Graphics are chosen first: which tests import MuJoCo before others draw depends on their order.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
import torch
from hypothesis import settings

from t3d.world.simulators import choose_graphics

choose_graphics()
torch.set_num_threads(1)
settings.register_profile("quick", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=1000)  # of `make test-all`
settings.load_profile("quick")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for the processes that tests start


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """What torch draws in a test does not depend on which tests came before it."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def only_loopback(self: socket.socket, address: Any) -> None:
        host = address[0] if isinstance(address, tuple) else "localhost"
        if host not in ("::1", "localhost") and not host.startswith("127."):
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", only_loopback)
