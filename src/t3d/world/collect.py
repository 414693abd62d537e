"""Steps environments with the newest policy and hands out what happened."""

from __future__ import annotations

import struct
import threading
import zlib
from typing import NamedTuple

import numpy as np

from t3d.config import Config
from t3d.errors import StoppedEarly
from t3d.seeds import derive, stream
from t3d.types import Episode, Fault, Floats, PolicySnapshot, Rollout, State, whole
from t3d.world.envs import BadValue, EnvFactory, Result
from t3d.world.lanes import Lanes, open_lanes
from t3d.world.noise import NOISES, Noise, scale_at
from t3d.world.policy import MemberPolicy

REMEMBERED_STEPS = 100_000  # of an episode in flight; a longer one begins anew when the run is resumed; chosen
MOST_FRUITLESS = 100  # episodes in a row that `skip` ends before their first transition; chosen


class Player:
    """The episode in flight in one environment of one member; its number decides every random stream in it."""

    noise: Noise
    warm_up: np.random.Generator
    observation: Floats

    def __init__(self, cfg: Config, seed: int, index: int, lanes: Lanes) -> None:
        self.cfg, self.seed, self.index, self.lanes = cfg, seed, index, lanes
        self.bad_values, self.fruitless = 0, 0
        self.begin(0)

    def begin(self, episode: int) -> None:
        """Resets the environment, the noise and the sums."""
        self.episode = episode
        self.total_reward, self.length = 0.0, 0
        self.actions: list[Floats] = []  # enough to play the episode again
        place = (self.index, self.episode)
        self.noise = NOISES[self.cfg.noise.kind](self.lanes.spec.action_size, stream(self.seed, "exploration", *place))
        self.warm_up = stream(self.seed, "warm-up", *place)
        self.observation = self.lanes.reset(self.index, derive(self.seed, "environment", *place), self.episode)
        self.trace = zlib.crc32(self.observation.tobytes())  # of all that the environment has said in this episode

    def random_action(self) -> Floats:
        """Uniform over the action space."""
        return self.warm_up.uniform(-1, 1, self.lanes.spec.action_size).astype(np.float32)

    def noisy(self, action: Floats, scale: float) -> Floats:
        """The policy's action with exploration noise, still a legal one."""
        noisy: Floats = np.clip(action + np.float32(scale) * self.noise(), -1, 1)
        return noisy

    def took(self, action: Floats, result: Result) -> Episode | None:
        """Takes in what the environment answered; the episode, if that ended it."""
        if result.sound:
            self.follow(action, result)
        if not (result.terminated or result.truncated):
            return None
        ended = Episode(self.index, self.episode, self.total_reward, self.length, result.terminated)
        self._refuse_endless_skipping()
        self.begin(self.episode + 1)
        return ended if ended.length else None

    def follow(self, action: Floats, result: Result) -> None:
        """One sound step further in the episode."""
        self.observation = result.observation
        self.total_reward += result.reward
        self.length += 1
        if self.length <= REMEMBERED_STEPS:
            self.actions.append(action)
        self.trace = zlib.crc32(struct.pack("d", result.reward), zlib.crc32(result.observation.tobytes(), self.trace))

    def state(self) -> State:
        """All that decides how this episode goes on; the environment itself is brought back by playing it again."""
        return {
            "episode": self.episode,
            "length": self.length,
            "trace": self.trace,
            "bad_values": self.bad_values,
            "fruitless": self.fruitless,
            "actions": np.array(self.actions, np.float32).reshape(-1, self.lanes.spec.action_size),
            "noise": dict(self.noise.state),
            "noise_stream": self.noise.rng.bit_generator.state,
            "warm_up_stream": self.warm_up.bit_generator.state,
        }

    def restore(self, state: State) -> None:
        """Sets what playing the episode again does not bring back."""
        self.bad_values, self.fruitless = whole(state["bad_values"]), whole(state["fruitless"])
        self.noise.state = dict(state["noise"])
        self.noise.rng.bit_generator.state = state["noise_stream"]
        self.warm_up.bit_generator.state = state["warm_up_stream"]

    def _refuse_endless_skipping(self) -> None:
        self.fruitless = 0 if self.length else self.fruitless + 1
        if self.fruitless == MOST_FRUITLESS:
            text = (
                f"{MOST_FRUITLESS} episodes in a row had a bad value in their first step; there is nothing to skip to"
            )
            fault = Fault(self.index, self.episode, 1, "every episode", text)
            raise BadValue(f"environment {self.index} of seed {self.seed}", fault)


class Team:
    """One member's environments and the players in them."""

    def __init__(self, cfg: Config, member: int, make_env: EnvFactory) -> None:
        self.cfg, self.member, self.seed = cfg, member, cfg.seeds[member]
        self.taken = 0  # transitions so far
        self.lanes = open_lanes(make_env, cfg.env, f"seed {self.seed}", cfg.env.num_envs)
        self.players = [Player(cfg, self.seed, index, self.lanes) for index in range(cfg.env.num_envs)]

    def step(self, policy: MemberPolicy) -> Rollout:
        """One step of every environment; none is taken beyond total_steps."""
        players = self.players[: self.cfg.total_steps - self.taken]
        s = np.stack([player.observation for player in players])
        a = self._actions(policy, players, s)
        try:
            results = self.lanes.step(a)
            episodes = [player.took(*answer) for player, *answer in zip(players, a, results, strict=True)]
        except BadValue as error:
            error.member = self.member
            raise
        sound = np.array([result.sound for result in results])
        self.taken += int(sound.sum())
        return Rollout(
            self.member,
            s[sound],
            a[sound],
            np.array([result.reward for result in results], np.float32)[sound],
            np.stack([result.observation for result in results])[sound],
            np.array([result.terminated for result in results])[sound],
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
            player.restore(state[f"env-{player.index}"])
            if (player.episode, player.length, player.trace) != (flight.episode, flight.length, flight.trace):
                known = flight.length == len(flight.actions)
                why = "did not repeat" if known else f"has forgotten the first of {flight.length:,} steps of"
                notes.append(
                    f"environment {player.index} of seed {self.seed} {why} its episode {flight.episode}: "
                    "the next one begins, and the run goes on, but not bit for bit"
                )
                player.begin(flight.episode + 1)
        return notes

    def _actions(self, policy: MemberPolicy, players: list[Player], s: Floats) -> Floats:
        """Uniformly random for exactly the first random_steps steps of a member, then the policy with noise."""
        still_random = max(0, self.cfg.td3.random_steps - self.taken)
        actions = [player.random_action() for player in players[:still_random]]
        acting = players[still_random:]
        if acting:
            scale = scale_at(self.taken, self.cfg.noise)
            chosen = policy(s[still_random:])
            actions += [player.noisy(action, scale) for player, action in zip(acting, chosen, strict=True)]
        return np.stack(actions)

    def _faults(self) -> list[Fault]:
        """The bad values met: each environment's first ten, then its 100th, 1,000th and so on."""
        told = []
        for fault in self.lanes.take_faults():
            player = self.players[fault.env]
            player.bad_values += 1
            if player.bad_values <= 10 or str(player.bad_values).strip("0") == "1":
                told.append(fault._replace(met=player.bad_values))
        return told


class Flight(NamedTuple):
    """An episode in flight, as a checkpoint holds it."""

    episode: int
    length: int
    trace: int
    actions: Floats

    @classmethod
    def of(cls, state: State) -> Flight:
        return cls(whole(state["episode"]), whole(state["length"]), whole(state["trace"]), state["actions"])


def play_again(players: list[Player], flights: list[Flight], lanes: Lanes, stop: threading.Event) -> None:
    """Brings freshly begun environments to where they were.

    All are stepped together, as a VectorEnv must be, so shorter episodes begin later; until then their environments
    idle. Where an episode is not the first, the environment has been reset before, as it was in the run: some
    simulators (PyBullet) differ on the first reset only.
    """
    played = [flight.actions if len(flight.actions) == flight.length else flight.actions[:0] for flight in flights]
    longest = max(map(len, played))
    begins = [longest - len(actions) for actions in played]
    idle = np.zeros(lanes.spec.action_size, np.float32)
    for t in range(longest + 1):
        for player, flight, begin in zip(players, flights, begins, strict=True):
            if t == begin and not (t == 0 and player.episode == flight.episode):
                player.begin(flight.episode)
        if t == longest:
            break
        if stop.is_set():
            raise StoppedEarly("stopped while the episodes in flight were played again; the run is as it was")
        flying = [t >= begin for begin in begins]
        a = [actions[t - begin] if t >= begin else idle for actions, begin in zip(played, begins, strict=True)]
        for player, action, result, flies in zip(players, a, lanes.step(np.stack(a)), flying, strict=True):
            if flies and result.sound:
                player.follow(action, result)
            if result.terminated or result.truncated:  # an idle one, or one that does not repeat
                player.begin(player.episode)


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    def __init__(self, cfg: Config, make_env: EnvFactory) -> None:
        self.cfg = cfg
        self.teams = [Team(cfg, member, make_env) for member in range(len(cfg.seeds))]
        self.spec = self.teams[0].lanes.spec
        self.policies: list[MemberPolicy] = []

    def publish(self, snapshot: PolicySnapshot) -> None:
        """From now on act with this policy."""
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.teams))]

    def poll(self) -> list[Rollout]:
        """The next transitions, one block for each member that has not reached total_steps."""
        pairs = zip(self.teams, self.policies, strict=True)
        return [team.step(policy) for team, policy in pairs if team.taken < self.cfg.total_steps]

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
