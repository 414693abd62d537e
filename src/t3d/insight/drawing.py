"""Draws with matplotlib: pictures as files, and small ones inside pages, for light and dark screens and for paper."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from t3d.files import replace

STEPS, VALUES = "{x:,.0f}", "{x:,.6g}"  # how the numbers at axes are written
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


@contextmanager
def drawing(style: dict[Any, Any] | None = None) -> Iterator[Any]:
    """Provides pyplot, for files only, and without reading names that contain a $ as formulas."""
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s, and only plots need it)

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    with mpl.rc_context({"text.parse_math": False, **(style or {})}):
        yield plt


def save(figure: Any, out: Path) -> None:
    """Writes a figure to a file, in the format of its name."""
    image = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that the font lacks, e.g. in a name
        figure.savefig(image, format=out.suffix[1:] or "png", dpi=130)
    replace(out, image.getvalue())


def page_picture(draw: Callable[[Any], None], size: tuple[float, float] = (5.2, 3.0)) -> bytes:
    """Returns what draws into axes as a small SVG without a background, in colours that suit any page."""
    with drawing(PAGE_STYLE) as plt:
        figure, axes = plt.subplots(figsize=size, layout="constrained")
        draw(axes)
        image = io.BytesIO()
        figure.savefig(image, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    return PATHS.sub(lambda path: DECIMALS.sub(rb"\1", path[0]), image.getvalue())  # a tenth of a point is enough
