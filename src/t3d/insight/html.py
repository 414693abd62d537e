"""Pages that need nothing else, in which text is always text: whatever is not HTML already is escaped."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterable, Mapping
from html import escape
from importlib import resources
from pathlib import Path
from typing import TypeAlias

from t3d.errors import UserError
from t3d.files import error_text, followed, replace
from t3d.version import __version__

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:"  # a browser runs no script


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"
EMPTY = ("meta", "img")  # elements without content or end


def document(title: str, *body: Content) -> str:
    """Returns a whole page: no script, no other file, no other host."""
    head = [
        element("meta", {"charset": "utf-8"}),
        element("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": POLICY}),
        element("meta", {"name": "generator", "content": f"T3D {__version__}"}),
        element("title", None, title),
        element("style", None, Html((resources.files("t3d.insight") / "page.css").read_text("utf-8"))),
    ]
    return f'<!doctype html>\n<html lang="en"><head>{joined(head)}</head>\n<body>{joined(body)}</body></html>\n'


def element(name: str, attributes: Mapping[str, object] | None = None, *content: Content) -> Html:
    """Returns an element; attributes that are None are left out."""
    known = {key: value for key, value in (attributes or {}).items() if value is not None}
    start = "".join([name, *(f' {key}="{text(str(value))}"' for key, value in known.items())])
    inside = joined(*content)
    return Html(f"<{start}>" if name in EMPTY else f"<{start}>{inside}</{name}>")


def joined(*content: Content) -> Html:
    """Returns pieces one after the other."""
    pieces = []
    for piece in content:
        if isinstance(piece, str):
            pieces.append(piece if isinstance(piece, Html) else text(piece))
        elif piece is not None:
            pieces.append(joined(*piece))
    return Html("".join(pieces))


def text(plain: str) -> Html:
    """Escapes text; characters that cannot be printed, such as those that turn the direction of text, become ?."""
    return Html(escape("".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in plain)))


def table(heads: Iterable[str], rows: Iterable[Iterable[Content]], kind: str = "") -> Html:
    """Returns a table that scrolls sideways where it does not fit; the first cell of a row is its heading."""
    named = [element("th", {"scope": "col"}, head) for head in heads]
    head = element("thead", None, element("tr", None, named)) if named else None
    cells = (
        element("tr", None, element("th", {"scope": "row"}, first), (element("td", None, cell) for cell in others))
        for first, *others in rows
    )
    body = element("tbody", None, cells)
    return element("div", {"class": "table"}, element("table", {"class": kind or None}, head, body))


def picture(svg: bytes, caption: str) -> Html:
    """Returns a picture; caption is for readers who cannot see it."""
    return element("img", {"alt": caption, "src": f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"})


def section(title: str, *content: Content) -> Html:
    """Returns a part of a page under a heading."""
    return element("section", None, element("h2", None, title), *content)


def listed(sentences: Iterable[str]) -> Html:
    """Returns a list of sentences."""
    return element("ul", None, (element("li", None, sentence) for sentence in sentences))


def folded(summary: str, *content: Content) -> Html:
    """Returns what is shown only when asked for."""
    return element("details", None, element("summary", None, summary), *content)


def check_folder(out: Path | None) -> None:
    """Refuses a file that could not be written, before anything is trained."""
    if out is not None and os.path.isdir(out):  # noqa: PTH112 (Path.is_dir raises where this says no)
        raise UserError(f"cannot write {out}: it is a folder; name a file")
    if out is not None and not os.path.isdir(out.parent):  # noqa: PTH112
        raise UserError(f"cannot write {out}: there is no folder {out.parent}")


def write_page(content: bytes, out: Path | None, default: Path) -> Path:
    """Writes a page where the user wants it, through links, or to its default file; returns the path."""
    try:
        replace(followed(out) if out else default, content)
    except OSError as error:
        raise UserError(f"cannot write the page {out or default}: {error_text(error)}") from None
    return out or default
