"""Steps environments with the newest policy and hands out what happened."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from t3d.config import Config
from t3d.seeds import derive, stream
from t3d.types import Episode, Floats, PolicySnapshot, Rollout
from t3d.world.envs import EnvFactory, Environment
from t3d.world.noise import NOISES
from t3d.world.policy import MemberPolicy


class Player:
    """One environment of one member and the episode in flight."""

    def __init__(self, cfg: Config, seed: int, index: int, make_env: EnvFactory) -> None:
        self.cfg, self.seed, self.index = cfg, seed, index
        self.env = Environment(make_env(), f"environment {index} of seed {seed}")
        self.episode = -1
        self.noise: Callable[[], Floats]
        self.begin_episode()

    def begin_episode(self) -> None:
        """Resets the environment and its noise; the episode's number decides every random stream in it."""
        self.episode += 1
        self.total_reward, self.length = 0.0, 0
        size = self.env.spec.action_size
        self.noise = NOISES[self.cfg.noise.kind](
            self.cfg.noise, size, stream(self.seed, "exploration", self.index, self.episode)
        )
        self.warm_up = stream(self.seed, "warm-up", self.index, self.episode)
        self.observation = self.env.reset(derive(self.seed, "environment", self.index, self.episode))

    def random_action(self) -> Floats:
        """Uniform over the action space."""
        return self.warm_up.uniform(-1, 1, self.env.spec.action_size).astype(np.float32)

    def noisy(self, action: Floats) -> Floats:
        """The policy's action with exploration noise, still a legal one."""
        noisy: Floats = np.clip(action + self.noise(), -1, 1)
        return noisy

    def step(self, action: Floats) -> tuple[Floats, float, bool, Episode | None]:
        """Plays one action: the true next state, reward, terminated, and the episode if this ended it."""
        s2, reward, terminated, truncated = self.env.step(action)
        self.observation = s2
        self.total_reward += reward
        self.length += 1
        if not (terminated or truncated):
            return s2, reward, terminated, None
        ended = Episode(self.index, self.episode, self.total_reward, self.length, terminated)
        self.begin_episode()
        return s2, reward, terminated, ended


class InlineCollector:
    """Collects in this process, one step of every environment at a time: deterministic."""

    def __init__(self, cfg: Config, make_env: EnvFactory) -> None:
        self.cfg = cfg
        self.players = [[Player(cfg, seed, index, make_env) for index in range(cfg.env.num_envs)] for seed in cfg.seeds]
        self.spec = self.players[0][0].env.spec
        self.policies: list[MemberPolicy] = []
        self.taken = 0  # steps of each member so far

    def publish(self, snapshot: PolicySnapshot) -> None:
        """From now on act with this policy."""
        self.policies = [MemberPolicy(snapshot, member) for member in range(len(self.players))]

    def poll(self) -> list[Rollout]:
        """The next transitions, one block per member; none is taken beyond total_steps."""
        count = min(self.cfg.env.num_envs, self.cfg.total_steps - self.taken)
        blocks = [self._step_member(member, players[:count]) for member, players in enumerate(self.players)]
        self.taken += count
        return blocks

    def close(self) -> None:
        """Closes the environments."""
        for players in self.players:
            for player in players:
                player.env.close()

    def _step_member(self, member: int, players: list[Player]) -> Rollout:
        s = np.stack([player.observation for player in players])
        a = self._actions(member, players, s)
        results = [player.step(action) for player, action in zip(players, a, strict=True)]
        s2, rewards, terminated, ended = zip(*results, strict=True)
        episodes = [episode for episode in ended if episode is not None]
        return Rollout(member, s, a, np.array(rewards, np.float32), np.stack(s2), np.array(terminated), episodes)

    def _actions(self, member: int, players: list[Player], s: Floats) -> Floats:
        """Uniformly random for exactly the first random_steps steps of a member, then the policy with noise."""
        still_random = max(0, self.cfg.td3.random_steps - self.taken)
        warming, acting = players[:still_random], players[still_random:]
        actions = [player.random_action() for player in warming]
        if acting:
            chosen = self.policies[member](s[still_random:])
            actions += [player.noisy(action) for player, action in zip(acting, chosen, strict=True)]
        return np.stack(actions)
