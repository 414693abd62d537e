"""Reads the results that experiments/variants.py has written."""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from variants_studies import Study


def result_file(args: argparse.Namespace, task: str, name: str) -> Path:
    return Path(args.results or args.docs / "variants", args.study, f"{task}-{name}.json")


def results(args: argparse.Namespace, study: Study) -> list[dict[str, Any]]:
    """Reads the results in the order of the study, new ones and those in docs."""
    here, there = result_file(args, "", "").parent, args.docs / "variants" / args.study
    found = []
    for task, name in product(study.tasks, study.variants):
        folders = [here, there, *([there.parent / study.default_from] if name == "default" else [])]
        files = [path / f"{task}-{name}.json" for path in folders]
        found += [json.loads(file.read_text()) for file in files if file.exists()][:1]
    return found
