"""Steps environments with the newest policy and hands out what happened."""

from __future__ import annotations

import numpy as np

from t3d.config import Config
from t3d.seeds import derive, stream
from t3d.types import Episode, Floats, PolicySnapshot, Rollout
from t3d.world.envs import EnvFactory, Result
from t3d.world.lanes import Lanes, open_lanes
from t3d.world.noise import NOISES, Noise, scale_at
from t3d.world.policy import MemberPolicy


class Player:
    """The episode in flight in one environment of one member; its number decides every random stream in it."""

    noise: Noise
    warm_up: np.random.Generator
    observation: Floats

    def __init__(self, cfg: Config, seed: int, index: int, lanes: Lanes) -> None:
        self.cfg, self.seed, self.index, self.lanes = cfg, seed, index, lanes
        self.episode = -1
        self.begin_episode()

    def begin_episode(self) -> None:
        """Resets the environment, the noise and the sums."""
        self.episode += 1
        self.total_reward, self.length = 0.0, 0
        place = (self.index, self.episode)
        self.noise = NOISES[self.cfg.noise.kind](self.lanes.spec.action_size, stream(self.seed, "exploration", *place))
        self.warm_up = stream(self.seed, "warm-up", *place)
        self.observation = self.lanes.reset(self.index, derive(self.seed, "environment", *place), self.episode)

    def random_action(self) -> Floats:
        """Uniform over the action space."""
        return self.warm_up.uniform(-1, 1, self.lanes.spec.action_size).astype(np.float32)

    def noisy(self, action: Floats, scale: float) -> Floats:
        """The policy's action with exploration noise, still a legal one."""
        noisy: Floats = np.clip(action + np.float32(scale) * self.noise(), -1, 1)
        return noisy

    def took(self, result: Result) -> Episode | None:
        """Takes in what the environment answered; the episode, if that ended it."""
        self.observation = result.observation
        self.total_reward += result.reward
        self.length += 1
        if not (result.terminated or result.truncated):
            return None
        ended = Episode(self.index, self.episode, self.total_reward, self.length, result.terminated)
        self.begin_episode()
        return ended


class Team:
    """One member's environments and the players in them."""

    def __init__(self, cfg: Config, member: int, make_env: EnvFactory) -> None:
        seed = cfg.seeds[member]
        self.cfg, self.member = cfg, member
        self.lanes = open_lanes(make_env, cfg.env, f"seed {seed}", cfg.env.num_envs)
        self.players = [Player(cfg, seed, index, self.lanes) for index in range(cfg.env.num_envs)]

    def step(self, policy: MemberPolicy, taken: int, count: int) -> Rollout:
        """One step of the first count environments, after taken steps of this member."""
        players = self.players[:count]
        s = np.stack([player.observation for player in players])
        a = self._actions(policy, players, s, taken)
        results = self.lanes.step(a)
        episodes = [player.took(result) for player, result in zip(players, results, strict=True)]
        return Rollout(
            self.member,
            s,
            a,
            np.array([result.reward for result in results], np.float32),
            np.stack([result.observation for result in results]),
            np.array([result.terminated for result in results]),
            [episode for episode in episodes if episode is not None],
        )

    def _actions(self, policy: MemberPolicy, players: list[Player], s: Floats, taken: int) -> Floats:
        """Uniformly random for exactly the first random_steps steps of a member, then the policy with noise."""
        still_random = max(0, self.cfg.td3.random_steps - taken)
        actions = [player.random_action() for player in players[:still_random]]
        acting = players[still_random:]
        if acting:
            scale = scale_at(taken, self.cfg.noise)
            chosen = policy(s[still_random:])
            actions += [player.noisy(action, scale) for player, action in zip(acting, chosen, strict=True)]
        return np.stack(actions)


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    def __init__(self, cfg: Config, make_env: EnvFactory) -> None:
        self.cfg = cfg
        self.teams = [Team(cfg, member, make_env) for member in range(len(cfg.seeds))]
        self.spec = self.teams[0].lanes.spec
        self.policies: list[MemberPolicy] = []
        self.taken = 0  # steps of each member so far

    def publish(self, snapshot: PolicySnapshot) -> None:
        """From now on act with this policy."""
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.teams))]

    def poll(self) -> list[Rollout]:
        """The next transitions, one block per member; none is taken beyond total_steps."""
        count = min(self.cfg.env.num_envs, self.cfg.total_steps - self.taken)
        if count == 0:
            return []
        pairs = zip(self.teams, self.policies, strict=True)
        blocks = [team.step(policy, self.taken, count) for team, policy in pairs]
        self.taken += count
        return blocks

    def close(self) -> None:
        """Closes the environments."""
        for team in self.teams:
            team.lanes.close()
