"""R22: nothing needs a network."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_the_guard_against_connections_works() -> None:
    with socket.socket() as plug, pytest.raises(AssertionError, match="tried to reach"):
        plug.connect(("192.0.2.1", 80))  # an address that is nobody's (RFC 5737)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_quick_suite_passes_in_a_namespace_without_a_network() -> None:
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine does not let us make a network namespace")
    command = [unshare, "-rn", sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert finished.returncode == 0, finished.stdout[-3000:]
    assert " passed" in finished.stdout
