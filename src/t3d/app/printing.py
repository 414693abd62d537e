"""A console to which text is text: what people, files and environments say is never markup or a terminal command."""

from __future__ import annotations

from typing import Any, TextIO, cast

from rich.console import Console
from rich.text import Text

from t3d.app.output import Output, printable


class PlainConsole(Console):
    """rich's console without its markup, its emoji codes and its colouring of numbers."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False, highlight=False)

    def render_str(self, text: str, **keywords: Any) -> Text:
        """All strings come through here, those in tables too."""
        return super().render_str(printable(text), **keywords)

    @property
    def output(self) -> Output:
        """Where it prints to, and what went wrong there."""
        file: object = self.file
        return file if isinstance(file, Output) else Output(cast(TextIO, file))


def labelled(label: str, style: str, text: str) -> Text:
    """A coloured label and what it is about."""
    return Text.assemble((label, style), " ", printable(text))


def plain(value: Any) -> str:
    """A setting as one would type it."""
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
