"""Draws a picture beside what is printed: a file that cannot be written is an error, a missing matplotlib a note."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from t3d.app.plain_console import PlainConsole, labelled
from t3d.errors import UserError
from t3d.files import display_path, error_text


def draw_picture(draw: Callable[[], None], out: Path, console: PlainConsole) -> None:
    """Calls what draws into a file, and says where that is."""
    try:
        draw()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot write the image {out}: {error_text(error)}") from None
    except ImportError as error:
        console.print(labelled("note:", "yellow", f"no picture without matplotlib ({error})"), soft_wrap=True)
    else:
        console.print(f"plotted: {display_path(out)}", soft_wrap=True)
