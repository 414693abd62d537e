"""Prints docs/settings.md, built from the dataclasses: `python scripts/config_page.py > docs/settings.md`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Literal

from t3d.config import Config, algorithm, plain, settings
from t3d.config.fields import known_settings

INTRODUCTION = """\
# Settings

For anyone who wants to change something about a run: every setting, its default and what it does. Made from
[algorithm.py](../src/t3d/config/algorithm.py) and [settings.py](../src/t3d/config/settings.py) by
`python scripts/config_page.py > docs/settings.md`.

Each is a flag of `t3d train`, a key in a TOML file, and a field in Python, where `t3d.merge(t3d.preset("quick"),
{"td3": {"gamma": 0.97}})` changes it. Defaults < `--preset` < `--config` < flags. A run writes all of them to its
`config.toml`; `t3d train --config runs/NAME/config.toml` repeats it. The [paper's values](algorithm.md#settings).

```toml
# mine.toml
total_steps = 20000
random_steps = 2000
seeds = [0, 1]

[td3]
actor_hidden = [64, 64]
critic_hidden = [64, 64]
```

```sh
t3d train Pendulum-v1 --config mine.toml --td3.gamma 0.98   # a flag wins over the file
```

Lists are written with spaces or commas as flags (`--seeds 0 1 2`) and in brackets in TOML; `--no-scale-rewards`
switches off what `--scale-rewards` switches on. Steps are counted per seed. Noise is a fraction of half the action
range, because inside T3D actions are in [−1, 1]. *Sweep*: `--sweep` [trains several values](many-seeds.md#sweeps).
*Resume*: a resumed run may [change it](reliability.md#what-a-resume-may-change).
"""


def page() -> str:
    """Returns the page."""
    docstrings = field_docstrings(inspect.getsource(algorithm) + inspect.getsource(settings))
    values = {field.name: getattr(Config(), field.name) for field in dataclasses.fields(Config)}
    sections = {name: value for name, value in values.items() if dataclasses.is_dataclass(value)}
    tables = [_table(f"{name}.", section, docstrings) for name, section in sections.items()]
    return "\n".join([INTRODUCTION, _table("", Config(), docstrings), *tables])


def field_docstrings(source: str) -> dict[tuple[str, str], str]:
    """Maps (class, field) to the docstring after the field, which Python itself discards."""
    docstrings = {}
    classes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    for node in classes:
        for line, following in pairwise(node.body):
            match line, following:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docstrings[node.name, name] = text
    return docstrings


def _table(prefix: str, section: Any, docstrings: dict[tuple[str, str], str]) -> str:
    """Formats a section of settings, one row per setting."""
    kind = type(section)
    hints, known = typing.get_type_hints(kind), known_settings(kind)
    title = f"[{prefix[:-1]}]" if prefix else "The run"
    shared = [field.name for field in dataclasses.fields(algorithm.RuleConfig)] if prefix == "td7." else []
    lines = [f"## {title}", "", "| flag | default | what it is |", "|---|---|---|"]
    lines[1:1] = ["", f"`--{prefix}gamma` to `--{prefix}critic-hidden`, as in [td3], and:"] if shared else []
    for field in dataclasses.fields(kind):
        value = getattr(section, field.name)
        if not dataclasses.is_dataclass(value) and field.name not in shared:
            is_table = isinstance(value, dict)
            flag = f"[{prefix}{field.name}]" if is_table else f"--{prefix}{field.name}".replace("_", "-")
            declaring = next(owner for owner in kind.__mro__ if (owner.__name__, field.name) in docstrings)
            about = docstrings[declaring.__name__, field.name].replace("<", "\\<")  # or Markdown reads it as HTML
            about += _choices(hints[field.name], about) + _marks(known[field.name])
            lines.append(f"| `{flag}` | {_default(value)} | {about} |")
    return "\n".join(lines) + "\n"


def _choices(hint: Any, about: str) -> str:
    """Lists the values that a setting may have, if its description does not."""
    choices = typing.get_args(hint) if typing.get_origin(hint) is Literal else ()
    return "" if all(choice in about for choice in choices) else f" {'/'.join(f'`{choice}`' for choice in choices)}."


def _marks(known: Mapping[str, Any]) -> str:
    """Says whether members may differ in a setting, and whether a resumed run may change it."""
    marks = ["*Sweep.*"] if known.get("sweep") else []
    marks += ["*Resume.*"] if known.get("resume") in ("changed", "edited") else []
    return "".join(f" {mark}" for mark in marks)


def _default(value: Any) -> str:
    typed = plain(value).lower() if isinstance(value, bool) else plain(value)
    return f"`{typed}`" if typed and value != {} else "empty"


if __name__ == "__main__":
    sys.stdout.write(page())
