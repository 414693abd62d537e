"""What actors have sent to the learner; the same for actors here and on a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from t3d.actors.protocols import Collected
from t3d.actors.supervisor import Slot
from t3d.config import Config
from t3d.errors import NobodyLeft, UserError
from t3d.files import to_count
from t3d.policy.spec import Spec
from t3d.types import ActorNews, EpisodeResult, Fault, Origins, Rollout, State, row_sizes


class Inbox:
    """Transitions, reports, news and errors of actors, each returned once and in the order they came."""

    def __init__(self, cfg: Config, spec: Spec) -> None:
        self.cfg, self._sizes, self._dtype = cfg, row_sizes(spec), spec.observation_dtype
        self._names = cfg.member_names
        self.taken = [0 for _ in cfg.members]  # transitions returned by poll
        self.stopped: set[int] = set()
        self.news: list[ActorNews] = []
        self.diverged: dict[int, str] = {}  # members, and which action was not finite
        self.error: UserError | None = None  # ends acting
        self._rows: list[list[tuple[NDArray[Any], Origins]]] = [[] for _ in cfg.members]
        self._reports: list[tuple[list[EpisodeResult], list[Fault]]] = [([], []) for _ in cfg.members]

    @property
    def has_rows(self) -> bool:
        return any(self._rows)

    @property
    def living(self) -> list[int]:
        return [taken for member, taken in enumerate(self.taken) if member not in self.stopped]

    def add_rows(self, member: int, rows: NDArray[Any], origins: Origins) -> None:
        self._rows[member].append((rows, origins))

    def add_reports(self, member: int, episodes: list[Any], faults: list[Any], diverged: str = "") -> None:
        """Adds what else an actor reports of a member; episodes and faults are given as their fields."""
        self._reports[member][0].extend(EpisodeResult(*fields) for fields in episodes)
        self._reports[member][1].extend(Fault(*fields) for fields in faults)
        if diverged:
            self.diverged.setdefault(member, diverged)

    def report(self, slot: Slot, what: str, text: str) -> None:
        self.news.append(ActorNews(slot.number, what, text, slot.starts - 1))

    def report_fault(self, slot: Slot, why: str, *, others: bool) -> None:
        """Reports that an actor was lost, and whether it is given up; if there are no others, that ends acting."""
        self.report(slot, "lost", why)
        if slot.given_up:
            then = "its environments move to other actors" if others else "there is no other actor for its environments"
            self.report(slot, "given-up", f"{slot.faults_in_a_row} faults in a row; {then}")
        if not others:
            self.error = self.error or NobodyLeft(f"no actor is left to collect; the last one: {why}")

    def raise_error(self) -> None:
        reports = any(episodes or faults for episodes, faults in self._reports)
        if self.error is not None and not (self.news or self.has_rows or reports):
            raise self.error

    def take(self) -> Collected:
        members = [member for member, rows in enumerate(self._rows) if rows or any(self._reports[member])]
        news, self.news = self.news, []
        living = [(member, why) for member, why in self.diverged.items() if member not in self.stopped]
        return Collected([self._rollout(member) for member in members], news, living)

    def _rollout(self, member: int) -> Rollout:
        nothing = np.empty((0, sum(self._sizes)), self._dtype), np.empty((0, 4), np.int32)
        left = self.cfg.total_steps - self.taken[member]
        rows, origins = (np.concatenate(blocks)[:left] for blocks in zip(nothing, *self._rows[member], strict=True))
        (episodes, faults), self._rows[member], self._reports[member] = self._reports[member], [], ([], [])
        self.taken[member] += len(rows)
        return Rollout(member, rows, origins, self._sizes[0], episodes, faults)

    def state(self, episodes: NDArray[np.int64], bad_values: NDArray[np.int64]) -> State:
        """Returns every member's count, and the counters (members, num_envs) of episodes, which are abandoned."""
        state: State = {}
        for member, name in enumerate(self._names):
            pairs = zip(episodes[member].tolist(), bad_values[member].tolist(), strict=True)
            envs = {f"env-{index}": {"episode": number, "bad_values": bad} for index, (number, bad) in enumerate(pairs)}
            state[name] = {"taken": self.taken[member], **envs}
        return state

    def restore(self, state: State, episodes: NDArray[np.int64], bad_values: NDArray[np.int64]) -> None:
        for member, name in enumerate(self._names):
            saved = state[name]
            self.taken[member] = to_count(saved["taken"])
            for index in range(self.cfg.num_envs):
                episodes[member, index] = to_count(saved[f"env-{index}"]["episode"], least=-1)
                bad_values[member, index] = to_count(saved[f"env-{index}"]["bad_values"])
