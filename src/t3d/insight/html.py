"""Builds HTML in which text is always text: whatever is not HTML already is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TypeAlias


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Content: TypeAlias = "str | Iterable[Content] | None"
EMPTY = ("meta",)  # elements without content or end


def element(name: str, attributes: Mapping[str, object] | None = None, *content: Content) -> Html:
    """Returns an element; attributes that are None are left out."""
    known = {key: value for key, value in (attributes or {}).items() if value is not None}
    start = "".join([name, *(f' {key}="{text(str(value))}"' for key, value in known.items())])
    inside = joined(*content)
    return Html(f"<{start}>" if name in EMPTY else f"<{start}>{inside}</{name}>")


def joined(*content: Content) -> Html:
    """Returns pieces one after the other."""
    pieces = []
    for one in content:
        if isinstance(one, str):
            pieces.append(one if isinstance(one, Html) else text(one))
        elif one is not None:
            pieces.append(joined(*one))
    return Html("".join(pieces))


def text(said: str) -> Html:
    """Escapes text; characters that cannot be printed, such as those that turn the direction of text, become ?."""
    return Html(escape("".join(one if one.isprintable() or one in "\n\t" else "?" for one in said)))


def table(heads: Iterable[str], rows: Iterable[Iterable[Content]], kind: str = "") -> Html:
    """Returns a table that scrolls sideways where it does not fit; the first cell of a row is its heading."""
    named = [element("th", {"scope": "col"}, one) for one in heads]
    head = element("thead", None, element("tr", None, named)) if named else None
    made = element("table", {"class": kind or None}, head, element("tbody", None, (_row([*cells]) for cells in rows)))
    return element("div", {"class": "table"}, made)


def section(title: str, *content: Content) -> Html:
    """Returns a part of a page under a heading."""
    return element("section", None, element("h2", None, title), *content)


def listed(said: Iterable[str]) -> Html:
    """Returns a list of sentences."""
    return element("ul", None, (element("li", None, one) for one in said))


def folded(summary: str, *content: Content) -> Html:
    """Returns what is shown only when asked for."""
    return element("details", None, element("summary", None, summary), *content)


def _row(cells: list[Content]) -> Html:
    first = element("th", {"scope": "row"}, cells[0])
    return element("tr", None, first, (element("td", None, one) for one in cells[1:]))
