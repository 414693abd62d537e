"""HTML in which text is always text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from html_pages import Seen
from t3d.insight.html import Html, element, table


@given(st.text(), st.text())
def test_text_and_attributes_come_back_as_they_were_but_for_what_cannot_be_printed(said: str, named: str) -> None:
    found = Seen(element("p", {"title": named}, said, Html("<b></b>")))
    assert found.elements == ["p", "b"]
    for original, shown in ((said, found.said), (named, found.attributes["title"])):
        assert shown == "".join(one if one.isprintable() or one in "\n\t" else "?" for one in original)


def test_a_table_has_a_heading_for_each_row_and_column() -> None:
    assert table(["", "<x>"], [["a", "1"]]) == (
        '<div class="table"><table><thead><tr><th scope="col"></th><th scope="col">&lt;x&gt;</th></tr></thead>'
        '<tbody><tr><th scope="row">a</th><td>1</td></tr></tbody></table></div>'
    )
