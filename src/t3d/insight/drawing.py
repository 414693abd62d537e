"""Draws with matplotlib: pictures as files, and small ones inside pages, for light and dark screens and for paper."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from t3d.files import replace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS, VALUES = "{x:,.0f}", "{x:,.6g}"  # how the numbers at axes are written
COLOURS = ["#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#666666"]
LINES = ["-", "--", ":", "-."]  # the next one when all colours are taken
GREY = "#7f858c"
PAGE_COLOURS = (  # readable on white and on black; chosen
    *("#3d86cf", "#dc7526", "#2a9d5c", "#cc58a6"),
    *("#8f76e0", "#a8870c", "#1b9aa5", GREY),
)
PAGE_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), GREY),
    **{"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False},
    **{"svg.fonttype": "none", "svg.hashsalt": "t3d"},  # text stays text, and the same values give the same bytes
}
PATHS, DECIMALS = re.compile(rb' d="[^"]*"'), re.compile(rb"(\.\d)\d+")


def look(index: int) -> dict[str, Any]:
    """Returns the colour and the style of a line."""
    return {"color": COLOURS[index % len(COLOURS)], "linestyle": LINES[index // len(COLOURS) % len(LINES)]}


def save(figure: Figure, out: Path) -> None:
    """Writes a figure in the format of the file's name; a link is replaced, not followed."""
    replace(out, _image(figure, out.suffix[1:] or "png"))


def page_picture(draw: Callable[[Any], None], size: tuple[float, float] = (5.2, 3.0)) -> bytes:
    """Returns what draws into axes as a small SVG without a background, in colours that suit any page."""
    image = io.BytesIO()
    with drawing(size, PAGE_STYLE) as figure:
        draw(figure.subplots())
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None})
    return PATHS.sub(lambda path: DECIMALS.sub(rb"\1", path[0]), image.getvalue())  # a tenth of a point is enough


@contextmanager
def drawing(size: tuple[float, float], style: Mapping[Any, Any] = MappingProxyType({})) -> Iterator[Figure]:
    """Provides a figure of a size in inches, which notebooks show; names that contain a $ are not read as formulas."""
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only plots need it)
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context({"text.parse_math": False, **style}):
        figure: Any = Figure(figsize=size, layout="constrained")
        figure._repr_png_ = partial(_image, figure, "png", dpi=80)  # for notebooks without pyplot
        yield figure


def _image(figure: Figure, kind: str, dpi: int = 130) -> bytes:
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, e.g. in a name
        figure.savefig(image, format=kind, dpi=dpi)
    return image.getvalue()
