"""R24: two processes write the same small file at once. All writes succeed or wait, and no reader sees half a file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from faults import both
from t3d.errors import UserError
from t3d.files import clear_leftovers, replace
from t3d.store.control import ControlRequest, Notes, add_request, read_notes, read_request, write_notes

SESSION = {"pid": 4, "host": "here", "time": 1e9}
WRITERS = 2
WRITE = """
import json, sys, time
from pathlib import Path
from t3d.errors import UserError
from t3d.files import replace
from t3d.store.control import Notes, add_request, read_notes, write_notes

what, folder, who, tries = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
failed = 0
(folder / f"ready-{who}").touch()
while len(list(folder.glob("ready-*"))) < 2:
    time.sleep(0.001)
for number in range(tries):
    try:
        if what == "file":
            replace(folder / "file.json", json.dumps([who] * (1000 + 37 * number % 3000)).encode())
        elif what == "control":
            add_request(folder, json.loads(sys.argv[5]), "save")
        else:  # adds a tag to those that it sees, and looks again if somebody else was faster
            while True:
                seen = read_notes(folder)
                try:
                    write_notes(folder, Notes(tuple(sorted({*seen.tags, f"{who}-{number}"})), ""), before=seen)
                    break
                except UserError as error:
                    if "meanwhile" not in str(error):
                        raise
    except (OSError, ValueError, UserError):
        failed += 1
print(failed)
"""


def written(what: str, folder: Path, tries: int) -> tuple[int, int]:
    """Lets two processes write at once while this one reads; returns the failed writes, and the reads, all whole."""
    command = [sys.executable, "-c", WRITE, what, str(folder)]
    writers = [
        subprocess.Popen([*command, str(who), str(tries), json.dumps(SESSION)], stdout=subprocess.PIPE, text=True)
        for who in range(WRITERS)
    ]
    reads = 0
    while any(writer.poll() is None for writer in writers):
        if what == "file" and (folder / "file.json").exists():
            whole = json.loads((folder / "file.json").read_bytes())
            assert len({*whole}) == 1 and len(whole) >= 1000
        reads += read_request(folder, SESSION).save > 0 if what == "control" else 1
    failed = [writer.communicate()[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * WRITERS
    return sum(map(int, failed)), reads


@both(100, 800)
def test_nobody_sees_half_a_file(tmp_path: Path, trials: int) -> None:
    failed, reads = written("file", tmp_path, trials)
    print(f"{WRITERS * trials} writes, {failed} failed; {reads} reads, all whole")
    assert failed == 0 and reads > 0
    assert sorted(path.name for path in tmp_path.glob("file.json*")) == ["file.json"]


@both(100, 800)
def test_no_request_of_two_dashboards_is_lost(tmp_path: Path, trials: int) -> None:
    failed, _ = written("control", tmp_path, trials)
    assert (failed, read_request(tmp_path, SESSION)) == (0, ControlRequest(save=WRITERS * trials))


def test_no_tag_of_two_dashboards_is_lost(tmp_path: Path) -> None:
    failed, _ = written("notes", tmp_path, 10)
    assert failed == 0 and {*read_notes(tmp_path).tags} == {f"{who}-{n}" for who in range(2) for n in range(10)}


def test_notes_that_somebody_else_has_changed_are_not_overwritten(tmp_path: Path) -> None:
    write_notes(tmp_path, Notes(("mine",), "first"))
    with pytest.raises(UserError, match="meanwhile"):
        write_notes(tmp_path, Notes((), "second"), before=Notes((), ""))
    assert read_notes(tmp_path) == Notes(("mine",), "first")
    write_notes(tmp_path, Notes((), "second"), before=Notes(("mine",), "first"))
    write_notes(tmp_path, Notes((), "third"))  # whoever does not say what was there replaces it
    assert read_notes(tmp_path) == Notes((), "third")


def test_a_stopped_writer_does_not_hold_up_others_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("t3d.store.lock.WAIT_SECONDS", 0.1)
    holding = "import sys; from pathlib import Path; from t3d.store.lock import one_at_a_time\n"
    holding += "with one_at_a_time(Path(sys.argv[1])): print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", holding, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(UserError, match="another process"):
            add_request(tmp_path, SESSION, "stop")
        holder.communicate()
    assert add_request(tmp_path, SESSION, "stop") == ControlRequest(stop=True)


def test_what_a_killed_writer_left_is_cleared_and_nothing_else(tmp_path: Path) -> None:
    kept = {"mine.tmp", "notes.json", "notes.json.0a1b2c3d.tmp", "link.json.0a1b2c3d.tmp"}
    replace(tmp_path / "notes.json", b"{}")
    for name in ("mine.tmp", "config.toml.00ff00ff.tmp", "notes.json.0a1b2c3d.tmp"):
        (tmp_path / name).touch()
    (tmp_path / "link.json.0a1b2c3d.tmp").symlink_to(tmp_path / "notes.json")
    long_ago = time.time() - 3600
    for name in ("mine.tmp", "config.toml.00ff00ff.tmp"):
        os.utime(tmp_path / name, (long_ago, long_ago))
    clear_leftovers(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == kept


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace(tmp_path / "taken", b"{}")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_replacing_gives_the_rights_that_files_have(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    replace(tmp_path / "file", b"{}")
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode
