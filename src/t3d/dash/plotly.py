"""plotly.js from its wheel, and the style sheets that it adds to a page by itself."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from importlib import resources

SHEET = re.compile(rb"\.textContent='((?:[^'\\]|\\.)*)'")  # for maps, which no page of ours has


@functools.cache
def script() -> bytes:
    """Returns plotly.js."""
    return (resources.files("plotly") / "package_data" / "plotly.min.js").read_bytes()


@functools.cache
def style_sources() -> str:
    """Returns the hashes of its style sheets, which a Content-Security-Policy then allows and no other inline style."""
    sheets = [re.sub(rb"\\(.)", rb"\1", found) for found in SHEET.findall(script())]
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(sheet).digest()).decode()}'" for sheet in sheets)
