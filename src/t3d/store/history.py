"""What the log of a run says about its evaluations and its troubles; all other lines are passed over unparsed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import NamedTuple

from t3d.files import CORRUPT_ERRORS, Refused, open_plain, whole

EVAL, NOTE, ACTOR = (b'{"event": "%s"' % kind for kind in (b"eval", b"note", b"actor"))
LARGEST = 1e300  # returns beyond this cannot be averaged or drawn


class Score(NamedTuple):
    """An evaluation of one seed, in short."""

    step: int
    mean_return: float
    std_return: float


class History(NamedTuple):
    """What a log says."""

    scores: dict[int, list[Score]]  # by seed, in order
    notes: list[str]  # the environment doctor's warnings above all, and actors that were lost
    left_out: int  # lines that cannot be read


def read_history(path: Path) -> History:
    """The history of the run in a folder; the last line may be half written and is not counted then."""
    scores: dict[int, list[Score]] = {}
    notes: list[str] = []
    left_out = 0
    with open_log(path) as lines:
        for line in lines:
            try:
                if line.startswith(EVAL):
                    seed, score = _score(line)
                    scores.setdefault(seed, []).append(score)
                elif line.startswith((NOTE, ACTOR)):
                    notes += _notes(line)
                elif not (line.startswith(b'{"event": "') and line.endswith(b"}\n")):
                    raise Refused("it is not an event")
            except CORRUPT_ERRORS:
                left_out += line.endswith(b"\n")
    return History(scores, notes, left_out)


def best_score(scores: list[Score]) -> Score:
    """The evaluation with the highest mean return, the first of equals."""
    return max(scores, key=lambda one: one.mean_return)


def open_log(path: Path) -> io.BufferedReader:
    """The lines of a run's events.jsonl."""
    return io.BufferedReader(open_plain(path / "events.jsonl"))  # type: ignore[arg-type]


def left_out_in_words(lines: int, file: Path | str) -> str:
    """Says that lines could not be read."""
    return f"{lines:,} {'line' if lines == 1 else 'lines'} of {file} cannot be read and are left out"


def _score(line: bytes) -> tuple[int, Score]:
    event = json.loads(line)
    figures = [float(event[name]) for name in ("mean_return", "std_return")]
    if not all(abs(figure) < LARGEST for figure in figures):  # written so that NaN fails
        raise Refused("its returns are not numbers")
    return whole(event["seed"]), Score(whole(event["step"]), *figures)


def _notes(line: bytes) -> list[str]:
    event = json.loads(line)
    if event["event"] == "note":
        return [str(event["text"])]
    told = f"actor {event['actor']} {event['what']}: {event['text']}"
    return [] if event["what"] == "back" else [told]
