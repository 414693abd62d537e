"""Reads run folders: live, finished, killed or copied from another machine, all the same."""

from __future__ import annotations

import io
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from t3d.config import Config, EnvConfig, Member, load_config
from t3d.config.networks import own_network
from t3d.config.sweeps import noun
from t3d.errors import UserError, did_you_mean
from t3d.events import Eval, Event, SeedStopped, from_line
from t3d.files import CORRUPT_ERRORS, Refused, open_plain
from t3d.policy.acting import SavedPolicy
from t3d.policy.files import UnknownNetwork, read_policy
from t3d.store.members import contenders, evals_by_member, stopped_members
from t3d.store.values import check_values

LOG = logging.getLogger("t3d.runs")
MARKS = ("events.jsonl", "config.toml", "checkpoints")  # a folder that holds one of them is a run
LONGEST_START = 2**22  # bytes; a first line longer than this is not T3D's
TAILS = (2**14, 2**18, 2**24)  # bytes read from the end, more only where a line is longer
AT_ONCE, LONGEST_LINE = 2**22, 2**24  # bytes that read_lines takes at a time, and of a line before it is cut
MOST_NAMED = 3  # members that a message lists


class Unreadable(UserError):
    """A folder that is not a run, or only the remains of one."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path} cannot be read as a run: {reason}; t3d runs lists the ones that can")
        self.path, self.reason = path, reason


class Place(NamedTuple):
    """How far a log has been read."""

    offset: int = 0  # bytes; the end of the last complete line
    line: bytes = b""  # that line: each says when it was written, so another one differs


START = Place()


class Chunk(NamedTuple):
    """What one read of a log returned."""

    events: list[Event]
    end: Place  # where the next read continues
    damaged: int  # complete lines that cannot be read
    restarted: bool  # the log was truncated, so these events replace all that were read before


class Lines(NamedTuple):
    """Some complete lines of a log."""

    lines: list[bytes]  # without their ends
    end: Place  # where the next read continues
    restarted: bool  # the log was truncated, so these lines replace all that were read before


class Run(NamedTuple):
    """A run, as read from its folder."""

    path: Path
    cfg: Config
    evals: dict[Member, list[Eval]]  # in order
    stopped: Mapping[Member, SeedStopped] = MappingProxyType({})  # those that have diverged

    @property
    def contenders(self) -> list[Member]:
        """The members that the best one is chosen from."""
        return contenders(self.cfg.members, self.evals, self.stopped)

    def best_member(self) -> Member:
        """Returns the contender with the highest evaluation; insight/best_member.py compares on fresh episodes."""
        if not self.evals:
            raise UserError(f"{self.path} has no evaluation (t3d runs show {self.path} says how it ended)")
        return max(self.contenders, key=lambda member: best_of(self.evals[member]).mean_return)

    def member(self, asked: int | str) -> Member:
        """Returns the member asked for, by its name or, where that is enough, its seed, if it was evaluated."""
        found = [member for member in self.cfg.members if str(asked) in (member.name, str(member.seed))]
        if not found:
            what = noun(self.cfg.members)
            raise UserError(f"{self.path} has no {what} {asked}; its {what}s: {self._named(self.cfg.members)}")
        if len(found) > 1:
            raise UserError(f"several members have seed {asked}: {self._named(found)}; choose one by name")
        if found[0] not in self.evals:
            known = self._named([*self.evals]) or "none yet"
            raise UserError(f"{self.path} has no evaluation of {found[0].title}; it has: {known}")
        return found[0]

    def _named(self, members: Sequence[Member]) -> str:
        """Lists at most three members."""
        names = [member.name if member.values else str(member.seed) for member in members]
        more = f" and {len(names) - MOST_NAMED} more (t3d runs show {self.path} lists them)"
        return ", ".join(names[:MOST_NAMED]) + (more if len(names) > MOST_NAMED else "")

    def env(self, given: str | None) -> EnvConfig:
        """Returns the environment of the id asked for, or the one it was trained on, with its arguments."""
        if given and given != self.cfg.env.id:
            return replace(self.cfg.env, id=given, args={})
        if not self.cfg.env.id:
            raise UserError(
                f"{self.path} was trained on an environment made in Python; name one with --env module:callable"
            )
        return self.cfg.env

    def load(self, stem: Path) -> SavedPolicy:
        """Loads a policy file of this run."""
        try:
            return read_policy(stem)
        except UnknownNetwork:  # the run's own, imported only if it is needed
            return read_policy(stem, own_network(self.cfg.td3))

    def policy(self, member: Member, which: str = "best") -> SavedPolicy:
        """Returns the best or the last policy of a member; refuses a file that says it is another's."""
        stem = self.path / which / member.name
        policy = self.load(stem)
        about = policy.about
        kind, of, values = about.get("kind", which), about["seed"], about.get("values", {})
        if (kind, of, values) != (which, member.seed, dict(member.values)):
            whose = f"seed {of} with {values!s:.60}" if values else f"seed {of}"
            raise UserError(f"{stem} holds the {kind!s:.60} policy of {whose}; files of this run were swapped")
        return policy


def open_run(text: str | Path, root: str | Path = "runs") -> Run:
    """Reads the run at a path, or of a name under root."""
    path = locate(text, Path(root))
    events, cfg = read_events(path, kinds=(Eval, SeedStopped)), load_config(path / "config.toml")
    return Run(path, cfg, evals_by_member(events, cfg.members), stopped_members(events, cfg.members))


def locate(text: str | Path, root: Path) -> Path:
    """Finds the folder of the run at a path, or of a name under root."""
    places = (Path(text), root / text)
    for mark in MARKS:
        for path in places:
            if os.path.lexists(path / mark):
                return path
    for path in places:
        if os.path.isdir(path):  # noqa: PTH112 (Path.is_dir raises where this says no)
            raise Unreadable(path, "it has no events.jsonl")
    known = [found.parent.name for found in root.glob("*/events.jsonl")]
    is_name = Path(text).name == str(text)
    where, others = (f"named {text} in {root}", "them") if is_name else (f"at {text}", f"those in {root}")
    raise UserError(f"there is no run {where}{did_you_mean(Path(text).name, known) or f'; t3d runs lists {others}'}")


def read_events(path: Path, kinds: Iterable[type[Event]] = ()) -> list[Event]:
    """Reads the events of a run folder, all or those of some kinds; a warning says how many lines cannot be read."""
    try:
        chunk = read_log(path, kinds=kinds)
    except (OSError, Refused) as error:
        raise UserError(f"{path / 'events.jsonl'} cannot be read: {error}") from None
    if chunk.damaged:
        LOG.warning("%s", damage_in_words(chunk.damaged, path / "events.jsonl"))
    return chunk.events


def read_log(path: Path, after: Place = START, kinds: Iterable[type[Event]] = ()) -> Chunk:
    """Reads the events of a run folder, all or those after an earlier chunk's end.

    With kinds all other lines are skipped unparsed, and are damaged only if they do not even look like events.
    A last line that a kill cut short, or that is still being written, is left for later.
    """
    wanted = prefixes(kinds) or (b"",)
    events: list[Event] = []
    damaged = 0
    with _open_log(path) as log:
        restarted = not _still_holds(after, log)
        offset, last = START if restarted else after
        log.seek(offset)
        for line in log:
            if line[-1:] != b"\n":
                break
            offset, last = offset + len(line), line
            try:
                if not line.startswith(wanted):
                    damaged += line[:11] != b'{"event": "' or line[-2:] != b"}\n"
                elif (event := _parse(line)) is not None:
                    events.append(event)
            except CORRUPT_ERRORS:
                damaged += 1
        return Chunk(events, Place(offset, last), damaged, restarted)


def read_lines(path: Path, after: Place = START) -> Lines:
    """Reads the next few megabytes of a run's events as lines, for those who parse them in bulk; none: that is all."""
    with _open_log(path) as log:
        restarted = not _still_holds(after, log)
        offset, last = START if restarted else after
        log.seek(offset)
        data = log.read(AT_ONCE)
        if len(data) == AT_ONCE and data[-1:] != b"\n":
            data += log.readline(LONGEST_LINE)
        if len(data) < AT_ONCE + LONGEST_LINE:  # otherwise it is no log of T3D's, and what it is ends somewhere
            data = data[: data.rfind(b"\n") + 1]
        *lines, rest = data.split(b"\n")
        lines += [rest] if rest else []
        place = Place(offset + len(data), data[-len(lines[-1]) - (not rest) :] if lines else last)
        return Lines(lines, place, restarted)


def read_end(path: Path) -> Place:
    """Returns where the last complete line ends, without reading what is before it."""
    with _open_log(path) as log:
        size = log.seek(0, os.SEEK_END)
        for length in TAILS:
            begin = max(0, size - length)
            log.seek(begin)
            data = log.read(size - begin)
            data = data[: data.rfind(b"\n") + 1]
            before = data.rfind(b"\n", 0, -1)
            if data and (before >= 0 or begin == 0):
                return Place(begin + len(data), data[before + 1 :])
    return START


def read_part(path: Path, start: int, stop: int, end: Place) -> list[bytes] | None:
    """Reads the lines that begin between two offsets before an end; None if the log was truncated since."""
    with _open_log(path) as log:
        if not _still_holds(end, log):
            return None
        log.seek(max(0, start - 1))
        data = log.read(stop - max(0, start - 1))
        if start:
            data = data[data.find(b"\n") + 1 or len(data) :]  # the rest of a line that began before
        if data and data[-1:] != b"\n":
            data += log.readline(LONGEST_LINE)
        return data.split(b"\n")[:-1]


def read_ends(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Reads the fields of a run's start event and of the last event that can be read."""
    if not (path / "events.jsonl").is_file():
        raise Unreadable(path, "it has no events.jsonl")
    with _open_log(path) as log:
        first = log.readline(LONGEST_START)
        if not first:
            raise Unreadable(path, "its events.jsonl is empty")
        start = fields_of(first)
        if not start or start["event"] != "start":
            raise Unreadable(path, "its events.jsonl does not begin with a complete start event")
        return start, _last(log) or start


def last_event(path: Path) -> dict[str, Any]:
    """Reads the fields of the last event of a run that can be read, or nothing."""
    try:
        with _open_log(path) as log:
            return _last(log)
    except (OSError, Refused):
        return {}


def fields_of(line: bytes) -> dict[str, Any]:
    """Returns the fields of an event as any version wrote it, or nothing if the line is torn or something else."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) and {"event", "step", "time"} <= fields.keys() else {}


def event_of(line: bytes) -> Event | None:
    """Returns the event of a line; None if it is damaged or of a kind that only a newer T3D knows."""
    try:
        return _parse(line)
    except CORRUPT_ERRORS:
        return None


def prefixes(kinds: Iterable[type[Event]]) -> tuple[bytes, ...]:
    """Returns what lines with events of these kinds begin with."""
    return tuple(b'{"event": "%s"' % kind.event.encode() for kind in kinds)


def best_of(evals: list[Eval]) -> Eval:
    """Returns the evaluation of the best policy: the highest mean return since the task last changed."""
    marked = [one for one in evals if one.best]
    return marked[-1] if marked else max(evals, key=lambda one: one.mean_return)


def damage_in_words(lines: int, file: Path | str) -> str:
    """Says that lines could not be read."""
    return f"{lines:,} {'line' if lines == 1 else 'lines'} of {file} cannot be read and are left out"


def _open_log(path: Path) -> io.BufferedReader:
    return io.BufferedReader(open_plain(path / "events.jsonl"))  # type: ignore[arg-type]


def _still_holds(place: Place, log: io.BufferedReader) -> bool:
    """Whether the line read last is still where it was, so that no resume has truncated the log since."""
    log.seek(place.offset - len(place.line))
    return log.read(len(place.line)) == place.line


def _last(log: io.BufferedReader) -> dict[str, Any]:
    size = log.seek(0, os.SEEK_END)
    for length in TAILS:
        log.seek(max(0, size - length))
        for line in reversed(log.read(length).split(b"\n")):
            if fields := fields_of(line):
                return fields
    return {}


def _parse(line: bytes) -> Event | None:
    """Parses an event, if its values can be shown, compared and plotted: a file may say anything, and NaN is null."""
    event = from_line(line.decode())
    if event is not None:
        check_values(event)
    return event
