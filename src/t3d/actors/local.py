"""Many actors: processes on this machine that fill the replay while the learner learns.

Each actor has its share of the (member, environment) pairs, a ring of transitions to the learner, and reads the newest
policy and how far it may go from memory that all share. An actor that dies or hangs is restarted; one that keeps
failing is given up, and its environments move to the others.
"""

from __future__ import annotations

import threading
import time

import numpy as np

from t3d.actors.checkup_worker import Checkup
from t3d.actors.governor import Governor
from t3d.actors.shared_memory import POLICY_SLOTS, RANDOM, Policies, Ring, SharedState, Torn, Wakeup
from t3d.actors.supervisor import WorkerSlot, end_all, for_workers, starting
from t3d.actors.tally import ActingStatistics
from t3d.actors.worker_log import WorkerLog
from t3d.config import Config
from t3d.errors import NobodyLeft, UserError
from t3d.files import whole
from t3d.snapshots import PolicySnapshot, actor_sizes
from t3d.types import Acting, ActorNews, Episode, Fault, Floats, Rollout, State, row_sizes
from t3d.world.guard import EnvFactory

LONGEST_WAIT = 0.1  # seconds that poll waits for transitions, and between two looks at the actors
RING_ROWS, RING_BYTES = 1024, 2**26  # a ring holds so many rows and max_ahead, within so many bytes; chosen
BLOCK = 32  # transitions a member that poll likes to take at once; less where max_ahead is small; chosen
LONGEST_GATHERING, NAP = 0.002, 0.0005  # seconds that it waits for them, and between two looks; chosen
GOOD_WORK = 100  # transitions after which a fault is the first of a new row; chosen
Unit = list[tuple[int, int]]  # pairs of a member and one of its environments' numbers that one actor must step


class ActorSlot(WorkerSlot):
    """One actor's place: its environments too, and its ring while there is a process."""

    def __init__(self, number: int, units: list[Unit]) -> None:
        super().__init__()
        self.number, self.units = number, units
        self.transitions: Ring | None = None

    def close(self) -> None:
        """Gives up what belonged to a process that has ended."""
        super().close()
        if self.transitions is not None:
            self.transitions.close()
        self.transitions = None


class LocalCollector:
    """Collects in processes of their own: fast, and not deterministic."""

    def __init__(self, cfg: Config, make_env: EnvFactory, found: Checkup, log: WorkerLog) -> None:
        self.cfg, self.worker_cfg, self.governor = cfg, for_workers(cfg, make_env), Governor(cfg)
        self.spec, self.log = found.spec, log
        self.slots = [ActorSlot(number, units) for number, units in enumerate(shares(cfg, as_one=found.vector))]
        members, actors = len(cfg.seeds), cfg.local_actors
        self.policies = Policies(members, actor_sizes(self.spec, cfg.td3), POLICY_SLOTS)
        self.shared_state = SharedState(self.policies, members, cfg.env.num_envs, actors)
        self.shared_state.episodes[:] = -1
        self.learner_wakeup = Wakeup()
        self._width = sum(row_sizes(self.spec))
        self.taken = [0] * members  # transitions handed out
        self._received = np.zeros((members, actors), np.int64)
        self.updates, self._looked = 0, 0.0
        self._waited, self._lived = 0.0, 0.0  # seconds of the actors that have ended
        self._block = max(1, min(BLOCK, cfg.max_ahead // 3))
        self._rows: list[list[Floats]] = [[] for _ in cfg.seeds]  # received and not handed out
        self._told: list[tuple[list[Episode], list[Fault]]] = [([], []) for _ in cfg.seeds]
        self._news: list[ActorNews] = []
        self._error: UserError | None = None
        self._whole, self._span = ActingStatistics(), ActingStatistics()

    def publish(self, snapshot: PolicySnapshot, made: int) -> None:
        """From now on act with this policy, as far as the governor allows; the first one starts the actors.

        made is how many updates the learner has made, or begun on a GPU: policies may come late from there.
        """
        self.updates = made
        self.shared_state.publish(snapshot, self.governor.limit(snapshot.updates))
        self.supervise()
        for slot in self.slots:
            slot.wake()

    def poll(self) -> list[Rollout]:
        """The transitions that have come in, a block for each member; waits a moment for a block worth taking."""
        told = any(episodes or faults for episodes, faults in self._told)
        if self._error is not None and not (self._news or any(self._rows) or told):  # all before it is handed out
            raise self._error
        self.supervise()
        if not any(self._rows):
            waited = self._wait()
            self._span.learner_waited += waited if min(self.taken) < self.cfg.total_steps else 0.0
        self._receive_all()
        members = [member for member, rows in enumerate(self._rows) if rows or any(self._told[member])]
        return [self._rollout(member) for member in members]

    def news(self) -> list[ActorNews]:
        """What has happened to actors since the last call."""
        news, self._news = self._news, []
        return news

    def figures(self, *, whole_run: bool = False) -> Acting:
        """How acting and learning get along, since the last call or from the beginning."""
        restarts = sum(max(0, slot.starts - 1) for slot in self.slots)
        now, at_work = time.monotonic(), [slot.worker for slot in self.slots if slot.worker is not None]
        waited = self._waited + sum(worker.heartbeat.waited for worker in at_work)
        lived = self._lived + sum(now - worker.begun for worker in at_work)
        span, self._span = self._span, ActingStatistics(waited, lived)
        self._whole.add(span)
        return (self._whole if whole_run else span).figures(waited, lived, len(at_work), restarts)

    def state(self) -> State:
        """Every member's count, and the numbers of the episodes in flight, which are given up."""
        state: State = {}
        for member, seed in enumerate(self.cfg.seeds):
            pairs = zip(
                self.shared_state.episodes[member].tolist(), self.shared_state.bad_values[member].tolist(), strict=True
            )
            envs = {f"env-{index}": {"episode": number, "bad_values": bad} for index, (number, bad) in enumerate(pairs)}
            state[f"seed-{seed}"] = {"taken": self.taken[member], **envs}
        return state

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Goes on after a collector's transitions, with the next episode of every environment."""
        for member, seed in enumerate(self.cfg.seeds):
            saved = state[f"seed-{seed}"]
            self.taken[member] = self.shared_state.taken[member, -1] = whole(saved["taken"])
            for index in range(self.cfg.env.num_envs):
                self.shared_state.episodes[member, index] = whole(saved[f"env-{index}"]["episode"], least=-1)
                self.shared_state.bad_values[member, index] = whole(saved[f"env-{index}"]["bad_values"])
        return []

    def close(self) -> None:
        """Ends the actors and closes their environments."""
        end_all(self.slots)
        for shared in (self.shared_state, self.policies):
            shared.close()
        self.learner_wakeup.close()

    def supervise(self) -> None:
        """Starts actors that are due, and sees which have ended or hang; ten times a second."""
        if time.monotonic() - self._looked < LONGEST_WAIT or self._error is not None:
            return
        self._looked = time.monotonic()
        for slot in self.slots:
            if slot.due:
                self._start(slot)
            elif slot.worker is not None:
                fault = slot.worker.fault(self.cfg.env.hang_seconds)
                self._listen(slot)  # whether its environments are made; and a pipe that is full would stop it
                if fault:
                    self._lost(slot, fault)

    def _start(self, slot: ActorSlot) -> None:
        rows = min(RING_ROWS + self.cfg.max_ahead, RING_BYTES // (4 * self._width))
        with starting():
            ring = slot.transitions = Ring(self._width, max(rows, 2 * self.cfg.env.num_envs))
            task = {
                "role": "actor",
                "actor": slot.number,
                "envs": [pair for unit in slot.units for pair in unit],
                "ring": ring.handle,
                "shared_state": self.shared_state.handle,
                "policies": self.policies.handle,
                "learner_wakeup": self.learner_wakeup.fd,
            }
            slot.begin(
                self.worker_cfg, task, (ring, self.shared_state, self.policies, self.learner_wakeup), self.log.fd
            )
        if slot.starts > 1:
            self._tell(slot, "back", "restarted")

    def _lost(self, slot: ActorSlot, why: str) -> None:
        """Takes what is whole of an actor's work, and decides how to go on without it."""
        assert slot.worker is not None  # noqa: S101 (the caller has seen it)
        slot.worker.end()
        self._receive(slot)
        why, told_why = slot.worker.last_words or why, slot.worker.error is not None
        self._waited += slot.worker.heartbeat.waited
        self._lived += time.monotonic() - slot.worker.begun
        slot.close()
        self.shared_state.taken[:, slot.number] = self._received[:, slot.number]
        if told_why:  # no fault of its own: the run ends with what it has told
            return
        slot.failed(GOOD_WORK)
        self._tell(slot, "lost", why)
        if not slot.given_up:
            return
        others = [other for other in self.slots if not other.given_up]
        then = "its environments move to other actors" if others else "there is no other actor for its environments"
        self._tell(slot, "given-up", f"{slot.faults_in_a_row} faults in a row; {then}")
        if not others:
            self._error = self._error or NobodyLeft(f"no actor is left to collect; the last one: {why}")
            return
        for unit in slot.units:
            heir = min(others, key=lambda other: len(other.units))
            heir.units.append(unit)
            if heir.worker is not None:
                heir.worker.send(envs=unit)
        slot.units = []

    def _wait(self) -> float:
        """Waits for the first transition, and then a little for enough of them; returns the seconds that took."""
        begun = time.monotonic()
        if not self._waiting():
            self.learner_wakeup.wait(LONGEST_WAIT)
        enough, until = self._block * len(self.taken), time.monotonic() + LONGEST_GATHERING
        while 0 < self._waiting() < enough and time.monotonic() < until:
            time.sleep(NAP)
        return time.monotonic() - begun

    def _waiting(self) -> int:
        """Transitions that wait in the rings."""
        return sum(slot.transitions.waiting for slot in self.slots if slot.transitions is not None)

    def _tell(self, slot: ActorSlot, what: str, text: str) -> None:
        self._news.append(ActorNews(slot.number, what, text, slot.starts - 1))

    def _receive_all(self) -> None:
        rings = [slot.transitions for slot in self.slots if slot.transitions is not None]
        fill = sum(ring.waiting for ring in rings) / max(1, sum(ring.capacity for ring in rings))
        self._span.see_fill(fill)
        for slot in self.slots:
            if slot.worker is not None:
                self._receive(slot)

    def _receive(self, slot: ActorSlot) -> None:
        """Takes all that an actor has sent and told."""
        self._take_rows(slot)
        self._listen(slot)

    def _take_rows(self, slot: ActorSlot) -> None:
        """Takes what waits in an actor's ring."""
        assert slot.worker is not None and slot.transitions is not None  # noqa: S101 (the caller has seen them)
        try:
            rows, about = slot.transitions.receive()
        except Torn as error:
            slot.worker.last_words = str(error)
            slot.worker.process.kill()
            return
        if len(rows):
            slot.wake()  # there is room again
            slot.delivered += len(rows)
            for member in {member for unit in slot.units for member, _ in unit}:
                mine = about["member"] == member
                self._rows[member].append(rows[mine])
                self._received[member, slot.number] += mine.sum()
            self._span.see_ages(self.updates - about["updates"][about["updates"] != RANDOM])

    def _listen(self, slot: ActorSlot) -> None:
        """Hears what an actor tells. What the user must fix is raised once all that came before is handed out."""
        assert slot.worker is not None  # noqa: S101 (the caller has seen it)
        for message in slot.worker.receive():
            episodes, faults = self._told[message["member"]]
            episodes += [Episode(*fields) for fields in message["episodes"]]
            faults += [Fault(*fields) for fields in message["faults"]]
        if slot.worker.error is not None:
            self._error = self._error or slot.worker.error
            self._take_rows(slot)

    def _rollout(self, member: int) -> Rollout:
        """What has come in of one member, as far as it is still wanted."""
        rows = np.concatenate([np.empty((0, self._width), np.float32), *self._rows[member]])
        rows = rows[: self.cfg.total_steps - self.taken[member]]
        (episodes, faults), self._rows[member], self._told[member] = self._told[member], [], ([], [])
        self.taken[member] += len(rows)
        return Rollout(member, rows, self.spec.observation_size, episodes, faults)


def shares(cfg: Config, *, as_one: bool) -> list[list[Unit]]:
    """Which actor steps what; a VectorEnv is stepped as one, by a single actor.

    Dealt like cards, one environment of every member after the other: with no more of them than actors need, none gets
    two of one member. All members wait for the slowest, so none may depend on one busy actor alone.
    """
    members, envs, actors = range(len(cfg.seeds)), range(cfg.env.num_envs), cfg.local_actors
    each_env: list[Unit] = [[(member, env)] for env in envs for member in members]
    units = [[(member, env) for env in envs] for member in members] if as_one else each_env
    if len(units) < actors:
        what = (
            "a VectorEnv is stepped by one actor; take as many actors as seeds, or fewer"
            if as_one
            else (f"say --env.num-envs {-(-actors // len(members))}, or take fewer actors")
        )
        raise UserError(f"actors={cfg.actors}, and there is work for {len(units)}: {what}")
    return [units[number::actors] for number in range(actors)]
