"""What runs in a worker process: acting, evaluating or examining, as its parent says. world/launch.py starts it.

A fresh process without torch: it starts in a second, and one thread is all it uses.
"""

from __future__ import annotations

import itertools
import os
import signal
import socket
import sys
import time
import traceback
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from t3d.config import Config, merge
from t3d.errors import EnvironmentFailed, OwnSignal, UserError
from t3d.world.checkup import Doctor
from t3d.world.collect import Team
from t3d.world.envs import BadValue
from t3d.world.evaluate import Examiner
from t3d.world.find import env_factory
from t3d.world.player import Book
from t3d.world.policy import MemberPolicy
from t3d.world.shared import RANDOM, Bell, Board, Channel, Policies, Pulse, Ring

LONGEST_WAIT = 0.1  # seconds between two signs of life while there is nothing to do
ROUNDS_BETWEEN_MESSAGES = 64  # looking for them is a call into the system
EVALUATION_NICENESS = 5  # chosen
MOST_TRIES = 50  # to step back; chosen


class Actor:
    """Steps the environments it was given with the newest policies, as far as the board allows."""

    def __init__(self, cfg: Config, task: dict[str, Any], parent: Channel, pulse: Pulse) -> None:
        self.cfg, self.parent, self.pulse, self.number = cfg, parent, pulse, task["actor"]
        self.ring, self.board = Ring(*task["ring"]), Board(Policies(*task["policies"]), *task["board"])
        self.door, self.bell = Bell(task["door"]), Bell(task["bell"])
        self.make_env = env_factory(cfg.env.id)
        self.teams: list[Team] = []
        self.version, self.updates = 0, 0  # of the policy that acts
        self.policies: dict[int, MemberPolicy] = {}
        self._open(task["envs"])

    def run(self) -> None:
        """Until the process is ended."""
        for team in self.teams:
            team.begin()
        for number in itertools.count():
            self.pulse.beat()
            acted = self._round()
            if acted:
                self.bell.ring()
            else:
                self.pulse.wait(self.door, LONGEST_WAIT)
            if not acted or number % ROUNDS_BETWEEN_MESSAGES == 0:
                for message in self.parent.receive():
                    self._take_over(message["envs"])

    def close(self) -> None:
        """Closes the environments."""
        for team in self.teams:
            team.lanes.close()

    def _open(self, envs: list[list[int]]) -> list[Team]:
        """Makes environments, given as (member, number)."""
        opened = []
        for member in sorted({member for member, _ in envs}):
            indices = [index for owner, index in envs if owner == member]
            book = Book(self.board.episodes[member], self.board.bad_values[member])
            opened.append(Team(self.cfg, member, self.make_env, indices, book, self.pulse.beat))
        self.teams += opened
        self.version = 0  # there may be members whose policy is not here yet
        return opened

    def _take_over(self, envs: list[list[int]]) -> None:
        """Goes on with another actor's environments; making them may take as long as at the start."""
        self.parent.send(ready=False)
        opened = self._open(envs)
        self.parent.send(ready=True)
        for team in opened:
            team.begin()

    def _round(self) -> bool:
        """One step of every team that may take one; whether there was any."""
        limit = self.board.limit  # before the policy: the one that goes with this limit is there
        if self.version != self.board.version:
            self._take_policies()
        acted = False
        for team in self.teams:
            team.taken = int(self.board.taken[team.member].sum())
            if team.taken < limit and self.ring.room >= len(team.players):
                self._act(team)
                acted = True
        return acted

    def _take_policies(self) -> None:
        self.version = self.board.version
        for member in {team.member for team in self.teams}:
            snapshot = self.board.newest(member)
            self.policies[member] = MemberPolicy(snapshot, 0)
            self.updates = snapshot.updates

    def _act(self, team: Team) -> None:
        updates = self.updates if team.taken >= self.cfg.td3.random_steps else RANDOM
        rollout = team.step(self.policies[team.member])
        self.ring.send(rollout.rows, team.member, updates)
        self.board.taken[team.member, self.number] += len(rollout.r)
        if rollout.episodes or rollout.faults:
            self.parent.send(member=team.member, episodes=rollout.episodes, faults=rollout.faults)
        if team.error is not None:
            raise team.error


class Evaluator:
    """Plays the evaluation episodes of the members it is asked for."""

    def __init__(self, cfg: Config, task: dict[str, Any], parent: Channel, pulse: Pulse) -> None:
        self.cfg, self.parent, self.pulse = cfg, parent, pulse
        self.policies, self.door = Policies(*task["policies"]), Bell(task["door"])
        _step_back()  # before there are environments: what they start steps back too
        self.make_env = env_factory(cfg.env.id)
        self.examiners: dict[int, Examiner] = {}

    def run(self) -> NoReturn:
        """Until the process is ended."""
        while True:
            self.pulse.beat()
            for message in self.parent.receive():
                self._evaluate(**message)
            self.pulse.wait(self.door, LONGEST_WAIT)

    def close(self) -> None:
        """Closes the environments."""
        for examiner in self.examiners.values():
            examiner.lanes.close()

    def _evaluate(self, member: int, step: int, slot: int, first: int) -> None:
        """Tells each result the moment it is known: after a crash only what is missing is played again."""
        if member not in self.examiners:
            self.parent.send(ready=False)
            self.examiners[member] = Examiner(self.cfg, member, self.make_env, self.pulse.beat)
            self.parent.send(ready=True)
        examiner, snapshot = self.examiners[member], self.policies.get(slot)
        episodes = range(first, self.cfg.eval.episodes)
        for place in range(0, len(episodes), examiner.lanes.count):
            some = episodes[place : place + examiner.lanes.count]
            returns, lengths, bad_values = examiner.play(snapshot, some)
            results = list(zip(returns.tolist(), lengths.tolist(), strict=True))
            self.parent.send(member=member, step=step, first=some[0], results=results, bad_values=bad_values)


ROLES: dict[str, type[Actor | Evaluator | Doctor]] = {"actor": Actor, "evaluator": Evaluator, "doctor": Doctor}


class Ended(OwnSignal):
    """The parent ends this process."""


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise Ended


def work(channel: int) -> NoReturn:
    """Does what the first message says; an error that is not the process's own end is told to the parent."""
    parent = Channel(socket.socket(fileno=channel))
    task = parent.first()
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a run is stopped by its parent
    sys.path[:] = task["path"]
    try:
        worker = ROLES[task["role"]](merge(Config(), task["config"]), task, parent, Pulse(task["pulse"]))
        parent.send(ready=True)
        with closing(worker):
            worker.run()
        sys.exit(0)
    except Ended:
        sys.exit(0)
    except BadValue as error:
        parent.send(bad_value=error.fault, where=error.where, member=error.member)
    except UserError as error:
        parent.send(user_error=str(error))
    except Exception as error:
        own = not isinstance(error, EnvironmentFailed)
        where = traceback.extract_tb((error if own else error.__cause__ or error).__traceback__)[-1]
        text = f"{type(error).__name__}: {error}" if own else str(error)
        parent.send(crash=f"{text} ({Path(where.filename).name}, line {where.lineno})")
        traceback.print_exc()
    sys.exit(1)


def _step_back() -> None:
    """Training goes first. Linux may weigh sessions rather than processes: then only the session's niceness counts."""
    os.nice(EVALUATION_NICENESS)
    for _ in range(MOST_TRIES):
        try:
            Path("/proc/self/autogroup").write_text(str(EVALUATION_NICENESS), encoding="ascii")
            return
        except BlockingIOError:  # for those who are not root one session may change in a tenth of a second
            time.sleep(0.1)
        except OSError:  # sessions are not weighed here
            return
