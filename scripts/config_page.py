"""Prints docs/config.md, built from the dataclasses: `python scripts/config_page.py > docs/config.md`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import typing
from itertools import pairwise
from typing import Any, Literal

from t3d.config import Config, algorithm, plain, settings

INTRODUCTION = """\
# Settings

This page is generated from [algorithm.py](../src/t3d/config/algorithm.py) and
[settings.py](../src/t3d/config/settings.py) by `python scripts/config_page.py > docs/config.md`, and a test compares
the two.

Every setting is a flag of `t3d train`, a key in a TOML file and a field in Python (`env.args`, a table, is only in
TOML and in Python). Order: defaults < `--preset` <
`--config` < flags. A run writes all its settings to its `config.toml`; `t3d train --config runs/NAME/config.toml`
repeats it. Unknown names, wrong types and values out of range are rejected with a sentence that says why; names from
Stable-Baselines3, CleanRL and the authors' code (`--learning-starts`) are answered with ours (`--random-steps`).

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

```python
import t3d

cfg = t3d.merge(t3d.preset("quick"), {"total_steps": 20_000, "td3": {"gamma": 0.97}})
```

A list is written with spaces or commas as a flag (`--seeds 0 1 2`) and in brackets in TOML. True-or-false settings are
switched on with `--normalise-observations` and off with `--no-normalise-observations`. Steps are counted per
seed. Noise is given as a fraction of half the action range, because inside T3D actions are in [−1, 1]. What the paper
says about each setting: [deviations](deviations.md).
"""
NAMES = {int: "integer", float: "number", str: "string", bool: "true or false"}


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
    hints = typing.get_type_hints(kind)
    title = f"[{prefix[:-1]}]" if prefix else "The run"
    lines = [f"## {title}", "", str(kind.__doc__), "", "| flag | type | default | what it is |", "|---|---|---|---|"]
    for field in dataclasses.fields(kind):
        value = getattr(section, field.name)
        if not dataclasses.is_dataclass(value):
            is_table = isinstance(value, dict)
            flag = f"[{prefix}{field.name}]" if is_table else f"--{prefix}{field.name}".replace("_", "-")
            about = docstrings[kind.__name__, field.name].replace("<", "\\<")  # or Markdown reads it as HTML
            lines.append(f"| `{flag}` | {_type(hints[field.name])} | {_default(value)} | {about} |")
    return "\n".join(lines) + "\n"


def _type(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    if typing.get_origin(hint) is tuple:
        return f"list of {NAMES[typing.get_args(hint)[0]]}s"
    return "table" if typing.get_origin(hint) is dict else NAMES[hint]


def _default(value: Any) -> str:
    typed = plain(value).lower() if isinstance(value, bool) else plain(value)
    return f"`{typed}`" if typed and value != {} else "empty"


if __name__ == "__main__":
    sys.stdout.write(page())
