"""A small drone in a vertical plane that flies to a goal and stays there: an example of an environment of your own."""

from math import cos, exp, hypot, sin

import gymnasium as gym
import numpy as np

GRAVITY = 9.81  # m/s^2
SECONDS = 0.05  # per step
STEPS = 100  # per episode: 5 seconds
DRAG = 0.3  # 1/s, from the air
LAG = 0.5  # of the way to the tilt asked for is left after a step
ROOM = 3.0  # m from the middle to the walls, the floor and the ceiling


class Drone(gym.Env):
    """Thrust and tilt are the actions; wind blows from the left or the right, and the drone does not measure it."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": round(1 / SECONDS)}

    def __init__(self, wind=0.0, tolerance=0.1, render_mode=None):
        self.wind, self.tolerance, self.render_mode = wind, tolerance, render_mode  # m/s^2, m
        # Bounds are in your own units. For T3D actions are from -1 to 1, so 0 is the middle: here it hovers.
        thrust_and_tilt = np.array([[0, -0.5], [2 * GRAVITY, 0.5]], np.float32)  # m/s^2, radians
        self.action_space = gym.spaces.Box(*thrust_and_tilt)
        self.observation_space = gym.spaces.Dict(
            to_goal=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),  # m
            velocity=gym.spaces.Box(-np.inf, np.inf, (2,), np.float32),  # m/s
            tilt=gym.spaces.Box(-1.0, 1.0, (1,), np.float32),  # radians
        )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)  # seeds self.np_random: draw everything random from it
        self.x, self.y, self.goal_x, self.goal_y = self.np_random.uniform(-1.5, 1.5, 4).tolist()
        self.vx, self.vy, self.tilt, self.steps = 0.0, 0.0, 0.0, 0
        return self._observation(), {}

    def step(self, action):
        if self.steps % 20 == 0:  # a new gust every second
            self.gust = self.wind * float(self.np_random.choice([-1, 1]))
        thrust, wanted = action.tolist()  # floats are much faster than arrays of one or two numbers
        self.tilt = wanted + LAG * (self.tilt - wanted)
        self.vx += SECONDS * (thrust * sin(self.tilt) + self.gust - DRAG * self.vx)
        self.vy += SECONDS * (thrust * cos(self.tilt) - GRAVITY - DRAG * self.vy)
        self.x += SECONDS * self.vx
        self.y += SECONDS * self.vy
        self.steps += 1

        distance = hypot(self.goal_x - self.x, self.goal_y - self.y)
        energy = SECONDS * (thrust / GRAVITY) ** 2  # hovering for a second takes 1
        near, saving = exp(-distance), -0.1 * energy
        crashed = max(abs(self.x), abs(self.y)) > ROOM  # terminated: no rewards follow
        out_of_time = self.steps == STEPS  # truncated: rewards would follow, but nobody looks any more
        info = {
            "is_success": distance < self.tolerance,  # that of an episode's last step counts
            "distance": distance,
            "energy": energy,
            "reward_near": near,  # the parts of the reward
            "reward_saving": saving,
        }
        return self._observation(), near + saving, crashed, out_of_time, info

    def _observation(self):
        return {
            "to_goal": np.array([self.goal_x - self.x, self.goal_y - self.y], np.float32),
            "velocity": np.array([self.vx, self.vy], np.float32),
            "tilt": np.array([self.tilt], np.float32),
        }

    def render(self):
        picture = np.full((240, 240, 3), 255, np.uint8)
        _disc(picture, self.goal_x, self.goal_y, self.tolerance, (60, 170, 90))
        for arm in (-0.3, 0.0, 0.3):  # two rotors and the body between them
            _disc(picture, self.x + arm * cos(self.tilt), self.y - arm * sin(self.tilt), 0.1, (40, 90, 200))
        return picture


def _disc(picture, x, y, radius, colour):
    """Draws a disc whose centre and radius are in metres."""
    scale = len(picture) / (2 * ROOM)
    rows, columns = np.ogrid[: len(picture), : len(picture)]
    inside = (columns / scale - ROOM - x) ** 2 + (ROOM - rows / scale - y) ** 2 < radius**2
    picture[inside] = colour
