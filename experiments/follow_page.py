"""Types what a page says into a shell, from an empty folder: `python experiments/follow_page.py docs/first-steps.md`.

Each line of every `sh` block is typed as it stands, and each file that the page shows is written. A command that serves
keeps its terminal; what follows is typed into a second one. `--with 50000=2000` types something shorter.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(?:# (\w+\.py)\n)?(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVES = "Ctrl-C ends it"


class Terminal:
    """A shell in a folder."""

    def __init__(self, folder: Path) -> None:
        self._shell = subprocess.Popen(
            ["/bin/bash"], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, env=surroundings(), start_new_session=True,
        )  # fmt: skip

    def type(self, line: str) -> bool:
        """Types a line and prints what it says until it has ended, or serves; returns whether it serves."""
        print(f"$ {line}", flush=True)
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f'{line}\necho "@@ $? $PWD"\n')
        self._shell.stdin.flush()
        started = time.monotonic()
        for said in self._shell.stdout:
            if said.startswith("@@ "):
                _, code, self.folder = said.split()
                print(f"@ {time.monotonic() - started:.1f} s", flush=True)
                if code != "0":
                    sys.exit(f"it ended with code {code}")
                return False
            print(said, end="", flush=True)
            if SERVES in said:
                print(f"@ listens after {time.monotonic() - started:.1f} s", flush=True)
                return True
        sys.exit("the shell has ended")

    def press_ctrl_c(self) -> None:
        """Ends what runs, and the shell."""
        with suppress(ProcessLookupError):
            os.killpg(self._shell.pid, signal.SIGINT)
        try:
            print(self._shell.communicate(timeout=30)[0])
        except subprocess.TimeoutExpired:
            os.killpg(self._shell.pid, signal.SIGKILL)


def surroundings() -> dict[str, str]:
    """A newcomer's: nothing points to this checkout."""
    hidden = ("PYTHONPATH", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("--with", dest="others", nargs="*", default=[], metavar="THIS=THAT")
    args = parser.parse_args()
    page = args.page.read_text(encoding="utf-8")
    for replacement in [f"~/t3d={ROOT}", f"$HOME/t3d={ROOT}", *args.others]:
        page = page.replace(*replacement.split("=", 1))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        terminals = [Terminal(Path(folder))]
        try:
            follow(page, terminals)
        finally:
            for terminal in terminals:
                terminal.press_ctrl_c()
        print(f"@ {time.monotonic() - started:.0f} s in all")


def follow(page: str, terminals: list[Terminal]) -> None:
    """Types the page into the last of the terminals; opens another when one serves."""
    for language, file, text in BLOCK.findall(page):
        if language == "python" and file:
            (Path(terminals[-1].folder) / file).write_text(f"# {file}\n{text}", encoding="utf-8")
        for line in text.replace("\\\n", " ").splitlines() if language == "sh" else []:
            if line and terminals[-1].type(line):
                terminals.append(Terminal(Path(terminals[-1].folder)))
                terminals[-1].type(". .venv/bin/activate")


if __name__ == "__main__":
    main()
