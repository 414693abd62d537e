"""`t3d presets`: the presets and what they change."""

from __future__ import annotations

from dataclasses import dataclass

import tyro
from rich.console import Console
from rich.table import Table

from t3d.app.console import plain
from t3d.app.presets import PRESETS, preset
from t3d.config import Config, diff


@dataclass(frozen=True)
class PresetsArgs:
    """List the presets and what they change from the defaults."""


def main(arguments: list[str]) -> int:
    """Prints a table per preset."""
    tyro.cli(PresetsArgs, args=arguments, prog="t3d presets")
    console = Console()
    for name, (purpose, _) in PRESETS.items():
        console.print(f"[bold]{name}[/bold]: {purpose}", highlight=False)
        changes = diff(preset(name), Config(preset=name))
        if changes:
            table = Table("setting", "default", name)
            for key, (default, value) in changes.items():
                table.add_row(key, plain(default), plain(value))
            console.print(table)
        console.print()
    return 0
