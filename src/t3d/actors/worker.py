"""Runs in a worker process: acts, evaluates or checks an environment, as its parent asks; worker_main.py starts it.

It imports no torch, so it starts within a second, and it uses one thread.
"""

from __future__ import annotations

import itertools
import signal
import socket
import sys
import traceback
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from t3d.actors.checkup import Doctor
from t3d.actors.shared_memory import RANDOM, Channel, Heartbeat, Policies, Ring, SharedState, Wakeup
from t3d.config import Config, merge
from t3d.errors import Diverged, EnvironmentFailed, OwnSignal, UserError, as_sentence
from t3d.policy.acting import MemberPolicy
from t3d.process import lower_priority
from t3d.world.episode import EpisodeCounters, MemberActor
from t3d.world.evaluate import MemberEvaluator, finish
from t3d.world.guard import BadValue
from t3d.world.make import env_factory

LONGEST_WAIT = 0.1  # seconds between two signs of life while there is nothing to do
ROUNDS_BETWEEN_MESSAGES = 64  # checking for them is a system call
EVALUATION_NICENESS = 5  # chosen


class Actor:
    """Steps the environments it was given with the newest policies, as far as the learner allows."""

    def __init__(self, cfg: Config, task: dict[str, Any], parent: Channel, heartbeat: Heartbeat) -> None:
        self.cfg, self.parent, self.heartbeat, self.number = cfg, parent, heartbeat, task["actor"]
        self.ring, self.shared_state = Ring(*task["ring"]), SharedState(*task["shared_state"])
        self.shared_state.policies = Policies.opened(*task["policies"])
        self.worker_wakeup, self.learner_wakeup = Wakeup(task["worker_wakeup"]), Wakeup(task["learner_wakeup"])
        self.make_env, self.hears_episodes = env_factory(cfg.env), task["hears_episodes"]
        self.member_actors: list[MemberActor] = []
        self.version, self.updates = 0, 0  # of the acting policy
        self.policies: dict[int, MemberPolicy] = {}
        self._open(task["envs"])

    def run(self) -> None:
        for member_actor in self.member_actors:
            member_actor.begin()
        for number in itertools.count():
            self.heartbeat.beat()
            acted = self._round()
            if acted:
                self.learner_wakeup.wake()
            else:
                self.heartbeat.wait(self.worker_wakeup, LONGEST_WAIT)
            if not acted or number % ROUNDS_BETWEEN_MESSAGES == 0:
                for message in self.parent.receive():
                    obey = self._use if "config" in message else self._take_over
                    obey(**message)

    def close(self) -> None:
        for member_actor in self.member_actors:
            member_actor.env_batch.close()

    def _open(self, envs: list[list[int]]) -> list[MemberActor]:
        opened = []
        for member in sorted({member for member, _ in envs}):
            indices = [index for owner, index in envs if owner == member]
            counters = EpisodeCounters(self.shared_state.episodes[member], self.shared_state.bad_values[member])
            opened.append(MemberActor(self.cfg, member, self.make_env, indices, counters, self.heartbeat.beat))
            opened[-1].taken = int(self.shared_state.taken[member].sum())
        self.member_actors += opened
        self.version = 0  # new members may have no policy here yet
        return opened

    def _use(self, config: dict[str, Any]) -> None:
        self.cfg = merge(Config(), config)
        for member_actor in self.member_actors:
            member_actor.use(self.cfg)

    def _take_over(self, envs: list[list[int]]) -> None:
        """Takes over another actor's environments; opening them may take as long as at the start."""
        self.parent.send(ready=False)
        opened = self._open(envs)
        self.parent.send(ready=True)
        for member_actor in opened:
            member_actor.begin()

    def _round(self) -> bool:
        # What may be done is read before the policy, which is then at least as new.
        limit = self.shared_state.limit
        able = [member_actor for member_actor in self.member_actors if self._may_act(member_actor.member)]
        if self.version != self.shared_state.version:
            self.version = self.shared_state.version
            for member in {member_actor.member for member_actor in self.member_actors}:
                snapshot = self.shared_state.newest(member)
                self.policies[member], self.updates = MemberPolicy(snapshot, 0), snapshot.updates
        acted = False
        for member_actor in able:
            member_actor.taken = int(self.shared_state.taken[member_actor.member].sum())
            has_room = member_actor.taken < limit and self.ring.room >= len(member_actor.runners)
            if has_room and member_actor.error is None:
                self._act(member_actor)
                acted = True
        return acted

    def _may_act(self, member: int) -> bool:
        """Whether the learner wants its next step: if a rule hears episodes, not before it has heard of the last."""
        shared = self.shared_state
        has_heard = not self.hears_episodes or (shared.ended[member] <= shared.heard[member]).all()
        return bool(has_heard) and not shared.stopped[member]

    def _act(self, member_actor: MemberActor) -> None:
        updates = self.updates if member_actor.taken >= self.cfg.random_actions else RANDOM
        rollout = member_actor.step(self.policies[member_actor.member])
        for episode in rollout.episodes if self.hears_episodes else []:
            self.shared_state.ended[member_actor.member, episode.env] = episode.episode + 1
        if rollout.episodes or rollout.faults:  # before the rows, so that its end is known when its last row arrives
            self.parent.send(member=member_actor.member, episodes=rollout.episodes, faults=rollout.faults)
        self.ring.send(rollout.rows, rollout.origins, member_actor.member, updates)
        self.shared_state.taken[member_actor.member, self.number] += len(rollout.rows)
        if isinstance(member_actor.error, Diverged):
            self.parent.send(member=member_actor.member, episodes=[], faults=[], diverged=member_actor.error.what)
        elif member_actor.error is not None:
            raise member_actor.error


class Evaluator:
    """Plays the evaluation episodes that are requested."""

    def __init__(self, cfg: Config, task: dict[str, Any], parent: Channel, heartbeat: Heartbeat) -> None:
        self.cfg, self.parent, self.heartbeat = cfg, parent, heartbeat
        self.policies, self.worker_wakeup = Policies.opened(*task["policies"]), Wakeup(task["worker_wakeup"])
        lower_priority(EVALUATION_NICENESS)  # before environments exist: what they start inherits it
        self.make_env = env_factory(cfg.env)
        self.member_evaluators: dict[int, MemberEvaluator] = {}

    def run(self) -> NoReturn:
        while True:
            self.heartbeat.beat()
            for message in self.parent.receive():
                self._evaluate(**message)
            self.heartbeat.wait(self.worker_wakeup, LONGEST_WAIT)

    def close(self) -> None:
        for member_evaluator in self.member_evaluators.values():
            member_evaluator.close()

    def _evaluate(self, member: int, policy_slot: int, first: int) -> None:
        """Reports each result as soon as it is known: after a crash only missing episodes are played again."""
        if member not in self.member_evaluators:
            self.parent.send(ready=False)
            self.member_evaluators[member] = MemberEvaluator(self.cfg, member, self.make_env, self.heartbeat.beat)
            self.parent.send(ready=True)
        member_evaluator, snapshot = self.member_evaluators[member], self.policies.get(policy_slot)
        while first < self.cfg.eval.all_episodes:
            try:
                results = finish(member_evaluator.play(snapshot, member_evaluator.next_episodes(first)))
            except Diverged as error:
                self.parent.send(diverged=error.what)
                return
            self.parent.send(results=results)
            first += len(results)


def reported(error: Exception) -> dict[str, Any]:
    """Describes an error: a bad value, a mistake of the user, or a crash and where, whose traceback it prints."""
    if isinstance(error, BadValue):
        return {"bad_value": error.fault, "where": error.where, "member": error.member}
    if isinstance(error, UserError):
        return {"user_error": str(error)}
    traceback.print_exc()
    own = not isinstance(error, EnvironmentFailed)
    where = traceback.extract_tb((error if own else error.__cause__ or error).__traceback__)[-1]
    return {"crash": f"{as_sentence(error)} ({Path(where.filename).name}, line {where.lineno})"}


ROLES: dict[str, type[Actor | Evaluator | Doctor]] = {"actor": Actor, "evaluator": Evaluator, "doctor": Doctor}


class Ended(OwnSignal):
    """The parent ends this process."""


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended


def work(channel: int) -> NoReturn:
    """Does what the first message asks, and reports errors to the parent."""
    parent = Channel(socket.socket(fileno=channel))
    task = parent.first()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the parent stops a run
    sys.path[:] = task["path"]
    try:
        worker = ROLES[task["role"]](merge(Config(), task["config"]), task, parent, Heartbeat(task["heartbeat"]))
        parent.send(ready=True)
        with closing(worker):
            worker.run()
        sys.exit(0)
    except Ended:
        sys.exit(0)
    except Exception as error:
        parent.send(**reported(error))
    sys.exit(1)
