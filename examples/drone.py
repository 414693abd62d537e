"""A small drone in a vertical plane that flies to a goal and stays there."""

from math import cos, exp, hypot, sin

import gymnasium as gym
import numpy as np

GRAVITY = 9.81  # m/s^2
SECONDS = 0.05  # per step
STEPS = 100  # per episode: five seconds
DRAG = 0.3  # 1/s, of the air
LAG = 0.5  # of the way to the tilt that is asked for, this is left after a step
ROOM = 3.0  # m, from the middle to the walls, the floor and the ceiling


class Drone(gym.Env):
    """Its actions are thrust and tilt. Wind comes in gusts, from the left or the right, and is not observed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / SECONDS)}

    def __init__(self, wind=0.0, tolerance=0.1, render_mode=None):
        self.wind, self.tolerance, self.render_mode = wind, tolerance, render_mode  # m/s^2, m
        low, high = [0, -0.5], [2 * GRAVITY, 0.5]  # thrust in m/s^2, tilt in radians
        self.action_space = gym.spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
        self.observation_space = gym.spaces.Dict(
            to_goal=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),  # m
            velocity=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),  # m/s
            tilt=gym.spaces.Box(-0.5, 0.5, (1,), np.float32),  # radians
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random, the only source of randomness here
        self.x, self.y, self.goal_x, self.goal_y = self.np_random.uniform(-1.5, 1.5, 4).tolist()
        self.vx, self.vy, self.tilt, self.gust, self.steps = 0.0, 0.0, 0.0, 0.0, 0
        return self._observe(), {}

    def step(self, action):
        thrust, wanted = action.tolist()  # floats are faster than arrays of two numbers
        if self.steps % 20 == 0:  # a gust lasts for a second
            self.gust = self.np_random.uniform(-self.wind, self.wind)
        self.tilt = wanted + LAG * (self.tilt - wanted)
        self.vx += SECONDS * (thrust * sin(self.tilt) + self.gust - DRAG * self.vx)
        self.vy += SECONDS * (thrust * cos(self.tilt) - GRAVITY - DRAG * self.vy)
        self.x += SECONDS * self.vx
        self.y += SECONDS * self.vy
        self.steps += 1

        distance = hypot(self.goal_x - self.x, self.goal_y - self.y)
        energy = SECONDS * (thrust / GRAVITY) ** 2  # hovering for a second takes 1
        near, saving = exp(-2 * distance), -0.1 * energy
        info = {
            "is_success": distance < self.tolerance,  # that of an episode's last step counts
            **{"distance": distance, "energy": energy},
            **{"reward_near": near, "reward_saving": saving},  # what the reward consists of
        }
        crashed, out_of_time = max(abs(self.x), abs(self.y)) > ROOM, self.steps == STEPS
        return self._observe(), near + saving, crashed, out_of_time, info

    def _observe(self):
        return {
            "to_goal": np.array([self.goal_x - self.x, self.goal_y - self.y], np.float32),
            "velocity": np.array([self.vx, self.vy], np.float32),
            "tilt": np.array([self.tilt], np.float32),
        }

    def render(self):
        picture = np.full((300, 300, 3), 255, np.uint8)
        paint(picture, self.goal_x, self.goal_y, 0.2, (60, 170, 90))
        for arm in (-0.3, 0.0, 0.3):  # a body and two rotors
            paint(picture, self.x + arm * cos(self.tilt), self.y - arm * sin(self.tilt), 0.1, (40, 90, 200))
        return picture


def paint(picture, x, y, radius, colour):
    """Paints a disc, whose centre and radius are in metres."""
    rows, columns = np.ogrid[: len(picture), : len(picture)]
    scale = 2 * ROOM / len(picture)
    picture[(columns * scale - ROOM - x) ** 2 + (ROOM - rows * scale - y) ** 2 < radius**2] = colour
