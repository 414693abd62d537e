"""Steps environments with the newest policy and hands out what happened."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from t3d.config import Config
from t3d.types import Acting, ActorNews, Fault, Floats, PolicySnapshot, Rollout, State, whole
from t3d.world.envs import BadValue, EnvFactory
from t3d.world.lanes import open_lanes
from t3d.world.noise import scale_at
from t3d.world.numbers import played
from t3d.world.player import Book, Flight, Player, play_again
from t3d.world.policy import MemberPolicy


class Team:
    """Environments of one member and the players in them."""

    def __init__(
        self,
        cfg: Config,
        member: int,
        make_env: EnvFactory,
        indices: Sequence[int],
        book: Book,
        beat: Callable[[], object] = int,
    ) -> None:
        """Opens the environments of these numbers, whose first episodes come after those in the book."""
        self.cfg, self.member, self.seed = cfg, member, cfg.seeds[member]
        self.taken = 0  # the member's transitions so far
        self.error: Exception | None = None  # an environment has failed, and there will be no further step
        self.lanes = open_lanes(make_env, cfg.env, f"seed {self.seed}", indices, beat)
        self.players = [Player(cfg, self.seed, index, self.lanes, lane, book) for lane, index in enumerate(indices)]

    def begin(self) -> None:
        """Begins the first episode of every environment."""
        try:
            for player in self.players:
                player.begin(int(player.book.episodes[player.index]) + 1)
        except BadValue as error:
            error.member = self.member
            raise

    def step(self, policy: MemberPolicy) -> Rollout:
        """One step of every environment; none is taken beyond total_steps.

        If an environment fails, what the others answered is returned, and `error` says why.
        """
        players = self.players[: self.cfg.total_steps - self.taken]
        s = np.array([player.observation for player in players])
        a = self._actions(policy, players, s)
        results = self.lanes.step(a)
        episodes = [player.took(*answer) for player, *answer in zip(players, a, results, strict=True)]
        self.error = next((player.error for player in players if player.error is not None), None)
        if isinstance(self.error, BadValue):
            self.error.member = self.member
        sound = [lane for lane, result in enumerate(results) if result.sound]
        if len(sound) < len(results):
            s, a, results = s[sound], a[sound], [results[lane] for lane in sound]
        self.taken += len(sound)
        return Rollout(
            self.member,
            s,
            a,
            np.array([result.reward for result in results], np.float32),
            np.array([result.observation for result in results], np.float32).reshape(s.shape),
            np.array([result.terminated for result in results], np.bool_),
            [episode for episode in episodes if episode is not None],
            self._faults(),
        )

    def state(self) -> State:
        """The members' count and every episode in flight."""
        return {"taken": self.taken, **{f"env-{player.index}": player.state() for player in self.players}}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Plays every episode in flight again; says which did not come out as it was, and begins the next one there."""
        self.taken = whole(state["taken"])
        flights = [Flight.of(state[f"env-{player.index}"]) for player in self.players]
        play_again(self.players, flights, self.lanes, stop)
        if any(flight.episode or flight.length for flight in flights):
            self.lanes.take_faults()  # told before
        notes = []
        for player, flight in zip(self.players, flights, strict=True):
            saved = state[f"env-{player.index}"]
            player.restore(saved)
            if flight.trace is None:
                notes.append(f"episode {flight.episode - 1} was lost ({saved['failed']}); the next one begins")
            elif (player.episode, player.length, player.trace) != (flight.episode, flight.length, flight.trace):
                known = flight.length == len(flight.actions)
                why = "did not repeat" if known else f"has forgotten the first of {flight.length:,} steps of"
                notes.append(
                    f"environment {player.index} of seed {self.seed} {why} its episode {flight.episode}: "
                    "the next one begins, and the run goes on, but not bit for bit"
                )
                player.begin(flight.episode + 1)
        return notes

    def _actions(self, policy: MemberPolicy, players: list[Player], s: Floats) -> Floats:
        """Uniformly random for the first random_steps steps of a member, then the policy with noise.

        Exactly the first where one process acts; actors read each other's counts, which may be a step of each old.
        """
        still_random = max(0, self.cfg.td3.random_steps - self.taken)
        actions = [player.random_action() for player in players[:still_random]]
        acting = players[still_random:]
        if acting:
            scale = scale_at(self.taken, self.cfg.noise)
            chosen = policy(s[still_random:])
            actions += [player.noisy(action, scale) for player, action in zip(acting, chosen, strict=True)]
        return played(np.array(actions), self.lanes.spec)

    def _faults(self) -> list[Fault]:
        """The bad values met: each environment's first ten, then its 100th, 1,000th and so on."""
        told, players = [], {player.index: player for player in self.players}
        for fault in self.lanes.take_faults():
            player = players[fault.env]
            player.book.bad_values[player.index] += 1
            met = int(player.book.bad_values[player.index])
            if met <= 10 or str(met).strip("0") == "1":
                told.append(fault._replace(met=met))
        return told


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    def __init__(self, cfg: Config, make_env: EnvFactory) -> None:
        self.cfg = cfg
        envs = cfg.env.num_envs
        books = [Book(np.full(envs, -1), np.zeros(envs, np.int64)) for _ in cfg.seeds]
        self.teams = [Team(cfg, member, make_env, range(envs), book) for member, book in enumerate(books)]
        for team in self.teams:
            team.begin()
        self.spec = self.teams[0].lanes.spec
        self.policies: list[MemberPolicy] = []

    @property
    def taken(self) -> list[int]:
        """Transitions of each member so far."""
        return [team.taken for team in self.teams]

    def publish(self, snapshot: PolicySnapshot, made: int = 0) -> None:
        """From now on act with this policy, which is the newest: how many updates were made is not asked."""
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.teams))]

    def poll(self) -> list[Rollout]:
        """The next transitions, one block for each member that has not reached total_steps.

        An environment that has failed is told by the next call, when everything before it has been handed out.
        """
        for team in self.teams:
            if team.error is not None:
                raise team.error
        pairs = zip(self.teams, self.policies, strict=True)
        return [team.step(policy) for team, policy in pairs if team.taken < self.cfg.total_steps]

    def print_to(self, path: Path) -> None:
        """Nobody prints but this process."""

    def look_after(self) -> None:
        """There is nobody to look after."""

    def news(self) -> list[ActorNews]:
        """Nothing: there are no actors but this process."""
        return []

    def figures(self, *, whole_run: bool = False) -> Acting | None:
        """Nothing: acting and learning take turns."""
        return None

    def state(self) -> State:
        """Every member's count and episodes in flight, by seed."""
        return {f"seed-{team.seed}": team.state() for team in self.teams}

    def restore(self, state: State, stop: threading.Event) -> list[str]:
        """Goes on where a collector was; says what could not be brought back."""
        return [note for team in self.teams for note in team.restore(state[f"seed-{team.seed}"], stop)]

    def close(self) -> None:
        """Closes the environments."""
        for team in self.teams:
            team.lanes.close()
