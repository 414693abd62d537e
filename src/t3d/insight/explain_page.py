"""One update in fifteen steps as one HTML page that needs nothing else: no script, no other file, no other host."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from html import escape

from t3d.insight.explain import Quantity, Step
from t3d.insight.explain_pictures import PICTURES, drawn
from t3d.insight.fifteen_steps import LETTERS
from t3d.insight.one_update import OneUpdate

INDEX = re.compile(r"_([φθ]?[i\d]?'?)")
CSS = """
:root { color-scheme: light dark; --ink: #1c1f23; --paper: #ffffff; --soft: #62686f; --line: #d9dde1; --mark: #1f5f9e; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e6e8; --paper: #16181b; --soft: #a0a6ad; --line: #363b41; --mark: #7fb4ea; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 46rem; color: var(--ink); background: var(--paper);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.4rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin: 0 0 .4rem; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
nav a { display: inline-block; padding: 0 .35rem; } a { color: var(--mark); }
.formula { font-size: 1.05rem; color: var(--mark); margin: .3rem 0; overflow-wrap: anywhere; }
.settings, .facts, figcaption, th { color: var(--soft); font-size: .9rem; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .1rem .6rem .1rem 0; white-space: nowrap; font-weight: normal; }
th:first-child, td:first-child { text-align: left; }
p { margin: .4rem 0; } b { font-weight: 600; } code { font-size: .95em; overflow-wrap: anywhere; }
figure { margin: .6rem 0; } img { max-width: 100%; height: auto; }
"""


def heading(update: OneUpdate) -> str:
    """Says which update it is."""
    where = f"{update.cfg.env.title}, {update.member.title}, run {update.title} at step {update.step:,}"
    return f"Update {update.number:,} of {update.cfg.rule_title}: {where}"


def page(update: OneUpdate, steps: Sequence[Step], others: Sequence[Quantity] = (), *, pictures: bool = True) -> str:
    """Returns the page; others are what a rule that is not TD3 returned."""
    said = escape(heading(update))
    links = "".join(f'<a href="#step-{step.number}">{step.number}</a>' for step in steps)
    sections = "".join(_section(step, update, pictures=pictures) for step in steps)
    if others:
        sections += f"<section><h2>What its update returned</h2>{_table(others)}</section>"
    about = f"One real update, taken apart. {_math(LETTERS)} Point at a tensor to see where it is in the code."
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{said}</title><style>{CSS}</style></head>\n"
        f"<body><h1>{said}</h1><p>{about}</p><nav>{links}</nav>\n{sections}</body></html>\n"
    )


def _section(step: Step, update: OneUpdate, *, pictures: bool) -> str:
    number, text, details = step
    lines = [
        f'<section id="step-{number}"><h2>{number}. {escape(text.title)}</h2>',
        f'<p class="formula">{_math(text.formula)}</p>',
        f'<p class="settings">{escape(details.settings_line)}</p>' if details.settings else "",
        _table(details.quantities) if details.quantities else "",
        *(f'<p class="facts">{_math(fact)}</p>' for fact in details.facts),
        f"<p><b>For example</b> <code>{_math(details.example)}</code></p>" if details.example else "",
        _picture(number, update) if pictures and number in PICTURES else "",
        f"<p><b>Why</b> {_math(text.why)}</p>",
        f"<p><b>Without it</b> {_math(text.without)}</p></section>",
    ]
    return "\n".join(filter(None, lines)) + "\n"


def _math(text: str) -> str:
    """Escapes text and sets its indices lower: π_φ', Q_θ1, Σ_i."""
    return INDEX.sub(r"<sub>\1</sub>", escape(text, quote=False))


def _table(quantities: Sequence[Quantity]) -> str:
    head = "".join(f"<th>{name}</th>" for name in ("tensor", "shape", "mean", "std", "min", "max"))
    rows = "".join(_row(one) for one in quantities)
    return f'<div class="table"><table><tr>{head}</tr>\n{rows}</table></div>'


def _row(one: Quantity) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in (one.shape, *one.figures))
    return f'<tr><td title="{escape(one.source)}">{_math(one.symbol)}</td>{cells}</tr>\n'


def _picture(step: int, update: OneUpdate) -> str:
    image = base64.b64encode(drawn(step, update)).decode()
    caption = escape(PICTURES[step].caption(update))
    shown = f'<img alt="{caption}" src="data:image/svg+xml;base64,{image}">'
    return f"<figure>{shown}<figcaption>{caption}</figcaption></figure>"
