"""A run folder to put hostile files into, and the commands that meet them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from faults import Prober, contents_of

EVERY_NAME = [
    "checkpoints/000004-step-240/manifest.json",
    "checkpoints/000004-step-240/state.json",
    "checkpoints/000004-step-240/state.safetensors",
    "checkpoints/replay/000004-seed-0-200-240.safetensors",
    "best/seed-0.json",
    "best/seed-0.safetensors",
    "config.toml",
    "events.jsonl",
    "journal.jsonl",
    "metrics.csv",
    "lock",
]
READERS = ["policy", "show", "list", "eval", "plot", "resume"]  # resume last: it writes
WHO_READS = {
    "checkpoints": ["show", "resume"],
    "best": ["policy", "show"],
    "lock": ["resume"],
    "metrics.csv": ["resume"],
}
WHO_READS |= {"journal.jsonl": ["show", "resume"], "config.toml": ["eval", "resume"]}
TEXTS = [name for name in EVERY_NAME if "safetensors" not in name]


def readers(name: str) -> list[str]:
    return WHO_READS.get(name.partition("/")[0], READERS)


class Hostile:
    """A run folder to put hostile files into, and a place outside that nobody may touch."""

    def __init__(self, run: Path, prober: Prober) -> None:
        self.run, self.prober = run, prober
        self.newest = run / "checkpoints" / "000004-step-240"
        self.segment = "000004-seed-0-200-240.safetensors"
        self.marker = run.parent / "executed"
        self.outside = run.parent / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_bytes(b"precious")

    def meet(self, *actions: str) -> list[dict[str, Any]]:
        """Lets each command meet the folder: nothing executed, nothing outside touched, a sentence or a fallback."""
        before, answers = contents_of(self.outside), []
        for action in actions or READERS:
            target = self.run / "best" / "seed-0" if action == "policy" else self.run
            answer = self.prober(action, target, self.outside)
            assert answer["outcome"] in ("done", "UserError"), (action, answer)
            assert answer["opened"] == [], (action, answer)
            assert answer["seconds"] < 20, (action, answer)
            assert not self.marker.exists(), action
            assert contents_of(self.outside) == before, f"{action} wrote outside"
            answers.append(answer)
        return answers

    def refuse(self, *actions: str) -> None:
        for answer in self.meet(*actions):
            assert answer["outcome"] == "UserError" or answer["text"] == "2", answer
