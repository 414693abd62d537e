"""Requests for an action that must be refused (R14)."""

from __future__ import annotations

import json

import numpy as np

from serve_client import AS_BYTES, AS_JSON, GOOD, GOOD_LIMITED, SIZE

ROW = GOOD["observation"]


def with_value(value: str) -> bytes:
    """An observation in JSON whose second number is something else."""
    return f'{{"observation": [0.1, {value}, 0, 0, 0]}}'.encode()


def observation(text: str) -> bytes:
    return f'{{"observation": {text}}}'.encode()


def floats(*values: float) -> bytes:
    return np.array(values, "<f4").tobytes()


IN_JSON = {
    "NaN": with_value("NaN"),
    "Infinity": with_value("Infinity"),
    "minus Infinity": with_value("-Infinity"),
    "1e400": with_value("1e400"),
    "1e11": with_value("1e11"),
    "-1e30": with_value("-1e30"),
    "an integer of 30 digits": with_value("1" + 29 * "0"),
    "an integer of 5000 digits": with_value("1" + 5000 * "0"),
    "null": with_value("null"),
    "text among numbers": with_value('"1.0"'),
    "an object among numbers": with_value("{}"),
    "a list among numbers": with_value("[0]"),
    "too short": observation("[1, 2, 3, 4]"),
    "too long": observation("[1, 2, 3, 4, 5, 6]"),
    "a number": observation("5"),
    "text": observation('"0.1, 0.2, 0.3, 0.4, 0.5"'),
    "nothing in it": observation("[]"),
    "an empty batch": observation("[[]]"),
    "rows that are too short": observation("[[1, 2], [3, 4]]"),
    "rows of several lengths": observation("[[1, 2, 3, 4, 5], [1]]"),
    "three dimensions": observation("[[[1, 2, 3, 4, 5]]]"),
    "true for an observation": observation("true"),
    "null for an observation": observation("null"),
    "an object for an array": observation('{"speed": [1, 2, 3, 4, 5]}'),
    "a bad row in a batch": observation(f"[{ROW}, {ROW}, [0, 0, NaN, 0, 0]]"),
    "a huge batch": observation(str([ROW] * 300)),
    "deep in an observation": observation("[" * 70 + "]" * 70),
    "deep JSON": b"[" * 4000,
    "deeper JSON": observation("[" * 20_000 + "]" * 20_000),
    "deep objects": b'{"observation":' * 9000,
    "empty": b"",
    "spaces": b"   \n",
    "no JSON": b"hello",
    "JSON that is cut off": observation("[0.1, 0.2")[:-1],
    "two of them": json.dumps(GOOD).encode() * 2,
    "not UTF-8": b'\xff\xfe{"observation": []}',
    "a lone surrogate": observation('"\\ud800"'),
    "a list": b"[0.1, 0.2, 0.3, 0.4, 0.5]",
    "an empty object": b"{}",
    "another field": json.dumps({"obs": ROW}).encode(),
    "one field more": json.dumps({**GOOD, "network": "x"}).encode(),
    "reset that is no bool": json.dumps({**GOOD, "reset": "yes"}).encode(),
    "zeros after it": json.dumps(GOOD).encode() + b"\x00",
}
IN_BYTES = {
    "no bytes": b"",
    "one byte": b"\x00",
    "a byte too few": floats(*ROW)[:-1],
    "a byte too many": floats(*ROW) + b"\x00",
    "JSON as bytes": json.dumps(GOOD).encode() + b" ",
    "NaN as bytes": floats(0, 0, float("nan"), 0, 0),
    "infinity as bytes": floats(0, 0, 0, 0, float("inf")),
    "too large as bytes": floats(2e10, 0, 0, 0, 0),
    "bytes all set": b"\xff" * 4 * SIZE,
    "a bad row as bytes": floats(*ROW, *ROW, 0, float("nan"), 0, 0, 0),
    "a huge batch as bytes": floats(*ROW) * 257,
    "a picture": b"\x89PNG\r\n\x1a\n" + b"\x00" * 500,
}
PREVIOUS = {  # of a policy that limits how much actions change
    "text": '"nonsense"',
    "ragged": "[[1], [1, 2]]",
    "an object": "{}",
    "true": "true",
    "too short": "[0.1, 0.2]",
    "too long": "[0.1, 0.2, 0.3, 0.4]",
    "several for one": "[[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]]",
    "one for one, nested": "[[0.1, 0.2, 0.3]]",
    "three dimensions": "[[[0.1, 0.2, 0.3]]]",
    "nothing in it": "[]",
    "NaN": "[0, NaN, 0]",
    "Infinity": "[0, 0, -Infinity]",
    "1e300": "[1e300, 0, 0]",
    "an integer of 30 digits": "[1" + 29 * "0" + ", 0, 0]",
    "null among numbers": "[0, null, 0]",
    "text among numbers": '[0, "1", 0]',
}
BAD_PREVIOUS = {
    f"previous action: {name}": json.dumps({**GOOD_LIMITED, "previous_action": "@"}).replace('"@"', text).encode()
    for name, text in PREVIOUS.items()
}
BAD = {name: (AS_JSON, body) for name, body in IN_JSON.items()}
BAD |= {name: (AS_BYTES, body) for name, body in IN_BYTES.items()}
