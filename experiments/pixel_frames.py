"""What the agent sees beside what people see: `python experiments/pixel_frames.py` draws docs/img/pixels-frames.png."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from t3d.config import EnvConfig
from t3d.insight.drawing import drawing
from t3d.world.make import env_factory
from t3d.world.pixels import open_env

PICTURE = Path(__file__).parents[1] / "docs" / "img" / "pixels-frames.png"
SIDE, STACK, REPEAT = 84, 3, 2
PUSHES = [1.0] * 8  # of the pendulum, before the picture is taken


def main() -> None:
    """Draws the frames of one observation of Pendulum-v1, and the same moment as a video shows it."""
    cfg = EnvConfig(id="Pendulum-v1", pixels=SIDE, action_repeat=REPEAT)
    env = open_env(env_factory(cfg), cfg)
    frames = [env.reset(seed=1)[0]]
    for push in PUSHES:
        for _ in range(REPEAT):
            frame = env.step(np.array([2 * push], np.float32))[0]
        frames.append(frame)
    titles = [f"the agent, {back} steps ago" for back in range(STACK - 1, 0, -1)] + ["the agent, now", "people, now"]
    PICTURE.parent.mkdir(exist_ok=True)
    with drawing(PICTURE, (3 * (STACK + 1), 3.2)) as figure:
        axes = figure.subplots(1, STACK + 1)
        for axis, title, image in zip(axes, titles, [*frames[-STACK:], env.render()], strict=True):
            axis.imshow(image, interpolation="nearest")
            axis.set(title=title.replace("1 steps", "1 step"), xticks=[], yticks=[])
    env.close()


if __name__ == "__main__":
    main()
