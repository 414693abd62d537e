"""Reads HTML as a browser would."""

from __future__ import annotations

from html.parser import HTMLParser


class Seen(HTMLParser):
    """What a browser would find: elements, attributes, and text."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.said = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes.update(attrs)

    def handle_data(self, data: str) -> None:
        self.said += data
