"""Reads the offline files of W&B: the records of their protocol, in blocks as LevelDB's log has them."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2

BLOCK, FILE_HEADER, HEADER = 32 * 1024, 7, 7  # bytes
FULL, FIRST, _, LAST = 1, 2, 3, 4  # parts of a record


def rows(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The history of every run in a folder of W&B's, by its id; a run has only one file."""
    found: dict[str, list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("offline-run-*/*.wandb")):
        name = file.stem.removeprefix("run-")
        assert name not in found
        found[name] = [
            {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            for record in records(file)
            if record.WhichOneof("record_type") == "history"
        ]
    return found


def records(file: Path) -> Iterator[Any]:
    data, at, whole = file.read_bytes(), FILE_HEADER, b""
    assert data[:4] == b":W&B"
    while at + HEADER <= len(data):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        piece = data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        whole = piece if part in (FULL, FIRST) else whole + piece
        if part in (FULL, LAST):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(whole)
            yield record
