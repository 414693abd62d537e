"""Turns a video of a policy into the small animation of the README.

t3d train HalfCheetah-v5 --seeds 0 1 2 --actors local:12 --tf32 --run.name gait
t3d record runs/gait --steps 80
python experiments/gait_gif.py runs/gait/video.mp4 docs/img/halfcheetah-gait.gif
"""

from __future__ import annotations

import subprocess
import sys

import imageio_ffmpeg

WIDTH, FRAMES_PER_SECOND, COLOURS = 280, 20, 48
SKIPPED = 2.0  # seconds, while it gets up to speed


def main(video: str, picture: str) -> None:
    filters = f"fps={FRAMES_PER_SECOND},scale={WIDTH}:-1:flags=lanczos,split[a][b]"
    filters += f";[a]palettegen=max_colors={COLOURS}[p];[b][p]paletteuse=dither=bayer:bayer_scale=4"
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", "-ss", str(SKIPPED)]
    subprocess.run([*ffmpeg, "-i", video, "-vf", filters, "-loop", "0", picture], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
