"""Reads the results that experiments/variants.py and experiments/table1.py have written."""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from variants_studies import Study

TABLE1 = Path(__file__).parent.parent / "docs" / "table1"


def result_file(args: argparse.Namespace, task: str, name: str) -> Path:
    return Path(args.results or args.docs / "variants", args.study, f"{task}-{name}.json")


def results(args: argparse.Namespace, study: Study) -> list[dict[str, Any]]:
    """Reads the results in the order of the study, new ones and those in docs."""
    here, there = result_file(args, "", "").parent, args.docs / "variants" / args.study
    found = []
    for task, name in product(study.tasks, study.variants):
        if name == "default" and study.default_from_table1:
            found.append(default_of_table1(task, study.steps))
            continue
        files = [path / f"{task}-{name}.json" for path in (here, there)]
        found += [json.loads(file.read_text()) for file in files if file.exists()][:1]
    return found


def default_of_table1(task: str, steps: int) -> dict[str, Any]:
    """Returns the beginning of a training of experiments/table1.py as a result of experiments/variants.py."""
    table = json.loads((TABLE1 / f"{task}.json").read_text())
    settings = table["settings"]
    wanted = sum(step <= steps * 1.001 for step in table["steps"])  # evaluations happen at the next step of all seeds
    curves = [[*zip(table["steps"][:wanted], one, strict=False)] for one in table["returns"]]
    return {
        "task": task,
        "variant": "default",
        "steps": table["steps"][-1],
        "engine": settings["engine"],
        "actors": settings["actors"],
        "seconds": table["seconds"],
        "machine": table["machine"],
        "versions": table["versions"],
        "evaluations": dict(zip(settings["seeds"], curves, strict=True)),
    }
