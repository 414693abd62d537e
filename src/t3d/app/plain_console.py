"""A console that prints text literally: nothing from users, files or environments is markup or a control code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from t3d.app.safe_output import printable
from t3d.errors import UserError
from t3d.files import display_path, error_text


class PlainConsole(Console):
    """rich's console without its markup, its emoji codes and its colouring of numbers."""

    def __init__(self, **options: Any) -> None:
        if os.environ.get("TERM") == "dumb":
            options = {"force_terminal": False, **options}  # plain lines, whatever FORCE_COLOR says
        file = sys.stderr if options.get("stderr") else sys.stdout  # as they are now: an environment may replace them
        super().__init__(markup=False, emoji=False, highlight=False, **{"file": file, **options})

    def render_str(self, text: str, **keywords: Any) -> Text:
        """Escapes control characters; all strings pass through here, those in tables too."""
        return super().render_str(printable(text), **keywords)


def labelled(label: str, style: str, text: str) -> Text:
    """Returns a coloured label followed by the text."""
    return Text.assemble((label, style), " ", printable(text))


def draw_picture(draw: Callable[[], None], out: Path, console: PlainConsole) -> None:
    """Calls what draws into a file: one that cannot be written is an error, a missing matplotlib a note."""
    try:
        draw()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the image {out}: {error_text(error)}") from None
    except ImportError as error:
        console.print(labelled("note:", "yellow", f"no picture without matplotlib ({error})"), soft_wrap=True)
    else:
        console.print(f"plotted: {display_path(out)}", soft_wrap=True)
