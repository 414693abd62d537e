"""`t3d presets`: lists the presets and what they change."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from t3d.app.flags import read_flags
from t3d.app.plain_console import PlainConsole, labelled
from t3d.config import Config, diff, plain
from t3d.config.presets import PRESETS, preset


@dataclass(frozen=True)
class PresetsArgs:
    """List the presets and what they change from the defaults."""


def main(arguments: list[str]) -> int:
    """Prints a table per preset."""
    read_flags(PresetsArgs, arguments, "t3d presets")
    console = PlainConsole()
    for name, (purpose, _) in PRESETS.items():
        console.print(labelled(f"{name}:", "bold", purpose))
        changes = diff(preset(name), Config(preset=name))
        if changes:
            table = Table("setting", "default", name)
            for key, (default, value) in changes.items():
                table.add_row(key, plain(default), plain(value))
            console.print(table)
        console.print()
    return 0
