"""Rebuilds the watch over a run from its log."""

from __future__ import annotations

from pathlib import Path

from t3d.alarms.alarms import SEEN, Watch
from t3d.config import Config
from t3d.store.log import read_events
from t3d.store.members import member_of


def watch_over(cfg: Config, path: Path) -> Watch:
    """Returns a watch that has seen what the log of a run folder holds: nothing if the run is new."""
    watch = Watch(cfg)
    for event in read_events(path, kinds=SEEN):
        if event.member is None or member_of(event, cfg.members) is not None:
            watch.see(event)
    return watch
