"""What an environment observes and does: its spaces, and where each part of an observation is in T3D's flat arrays."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from t3d.config import EnvConfig
from t3d.errors import UserError
from t3d.policy.spec import Image, Part, Spec

Path = tuple[str | int, ...]
WIDEST = 1e9  # action bounds beyond this stand for infinity
SMALLEST_SIDE, LARGEST_SIDE = 32, 128  # pixels of an image that is encoded; chosen
MOST_CHANNELS = 12  # four stacked RGB frames; chosen
USUAL_CHANNELS = (1, 3, 4)  # arrays of bytes with these that are too small or too large for an image are refused
IMAGES = (
    f"images are uint8 up to 255, or floats with bounds 0 and 1, with two or three axes, {SMALLEST_SIDE} to "
    f"{LARGEST_SIDE} pixels each way and at most {MOST_CHANNELS} channels"
)
TINY_SIDE = 8  # with fewer pixels an array of bytes is a table, not an image; chosen
LOWEST_WHITE = 128  # bytes that never reach this are no brightness; chosen
MOST_BESIDE_SIDES = 16  # an array with two sides of an image and this many values or fewer beside them is one; chosen


def name_of(env: Any) -> str:
    """The name of an environment in messages."""
    spec = getattr(env, "spec", None)
    return str(spec.id) if spec else type(getattr(env, "unwrapped", env)).__name__


def spec_of(env: Any, cfg: EnvConfig | None = None) -> Spec:
    """Reads the spaces of a gymnasium.Env, or of one environment of a VectorEnv; refuses those TD3 cannot work with."""
    cfg, name, vector = cfg or EnvConfig(), name_of(env), isinstance(env, VectorEnv)
    mode = env.metadata.get("autoreset_mode") if vector else AutoresetMode.DISABLED
    if mode is not AutoresetMode.DISABLED:
        raise UserError(f"the VectorEnv resets by itself ({mode}); create it with AutoresetMode.DISABLED")
    try:
        observations = env.single_observation_space if vector else env.observation_space
        actions = env.single_action_space if vector else env.action_space
    except AttributeError as error:
        raise UserError(f"{name} is not complete ({error}); set it in the environment's __init__") from None
    if not isinstance(actions, spaces.Box):
        raise UserError(f"{name} has a {actions} action space; TD3 needs a continuous one (Box), as Pendulum-v1 has")
    low = actions.low.astype(np.float64).reshape(-1)
    high = actions.high.astype(np.float64).reshape(-1)
    for index, (least, most) in enumerate(zip(low, high, strict=True)):
        if not -WIDEST <= least < most <= WIDEST:
            raise UserError(
                f"{name} has action bounds [{least}, {most}] in dimension {index}; TD3 needs finite bounds, "
                "low below high: set them in the environment's action_space"
            )
    parts, images = layout_of(observations)
    spec = Spec(parts, actions.shape, low, high, str(actions.dtype), images, cfg.frame_stack)
    if not (spec.action_size and spec.observation_width):
        raise UserError(f"{name} has empty actions or observations ({actions}, {observations})")
    if cfg.frame_stack > 1 and not images:
        raise UserError(
            f"env.frame_stack={cfg.frame_stack} stacks images, and {name} observes none; leave it at 1, "
            "or observe rendered images with --env.pixels 84"
        )
    if cfg.max_action_change and np.dtype(actions.dtype).kind in "iu":
        raise UserError(
            f"env.max_action_change={cfg.max_action_change:g} limits continuous actions, and those of {name} are whole "
            "numbers; leave it at 0"
        )
    return spec._replace(max_action_change=cfg.max_action_change)


def layout_of(space: gym.Space[Any]) -> tuple[tuple[Part, ...], tuple[Image, ...]]:
    """Lays out an observation: images in a frame; the rest in a vector, choices as one-hot vectors."""
    parts: list[Part] = []
    images: list[Image] = []
    for path, leaf in _leaves(space):
        image = _image_of(leaf, path, images[-1].stop if images else 0)
        if image is not None:
            images.append(image)
            continue
        start = parts[-1].stop if parts else 0
        if isinstance(leaf, spaces.Discrete):
            parts.append(Part(path, (), start, start + int(leaf.n), first_choice=int(leaf.start)))
        elif isinstance(leaf, spaces.MultiDiscrete) and leaf.nvec.size:
            counts, first = (tuple(array.reshape(-1).tolist()) for array in (leaf.nvec, leaf.start))
            parts.append(Part(path, leaf.shape, start, start + sum(counts), first, counts))
        else:
            parts.append(Part(path, leaf.shape, start, start + prod(leaf.shape)))
    return tuple(parts), tuple(images)


def _leaves(space: gym.Space[Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    if isinstance(space, spaces.Dict):
        for key, child in space.spaces.items():
            yield from _leaves(child, (*path, key))
    elif isinstance(space, spaces.Tuple):
        for index, child in enumerate(space.spaces):
            yield from _leaves(child, (*path, index))
    elif isinstance(space, spaces.Box | spaces.MultiBinary | spaces.Discrete | spaces.MultiDiscrete):
        yield path, space
    else:
        raise UserError(
            f"the observation space holds {space}, which T3D cannot flatten; "
            "use Box, Discrete, MultiDiscrete, MultiBinary, or Dict and Tuple of these"
        )


def _image_of(space: gym.Space[Any], path: Path, start: int) -> Image | None:
    """Recognises an image by its type and shape; refuses one that cannot be encoded, and says why."""
    if not isinstance(space, spaces.Box) or len(space.shape) not in (2, 3, 4) or 0 in space.shape:
        return None
    channels_last = len(space.shape) == 2 or space.shape[2] < space.shape[0]
    height, width = space.shape[:2] if channels_last else space.shape[1:3]
    channels = 1 if len(space.shape) == 2 else space.shape[2 if channels_last else 0]
    is_float = space.dtype != np.uint8
    image = Image(path, (channels, height, width), start, start + prod(space.shape), channels_last, is_float)
    is_zero_to_one = np.dtype(space.dtype).kind == "f" and bool((space.low == 0).all() and (space.high == 1).all())
    is_brightness = is_zero_to_one if is_float else space.high.max() >= LOWEST_WHITE
    is_sized = min(height, width) >= SMALLEST_SIDE and max(height, width) <= LARGEST_SIDE and channels <= MOST_CHANNELS
    if len(space.shape) < 4 and is_brightness and is_sized:
        return image
    if _is_clearly_an_image(space, image):
        bounds = f"{space.dtype} with bounds {space.low.min():g} and {space.high.max():g}"
        raise UserError(
            f"{image.name} is an image of {' x '.join(map(str, space.shape))}, {bounds}, and {IMAGES}: resize it with "
            "gymnasium.wrappers.ResizeObservation, use --env.pixels 84 if the environment can be rendered, and stack "
            "frames with --env.frame-stack; if it is not an image, flatten it with "
            "gymnasium.wrappers.FlattenObservation"
        )
    return None


def _is_clearly_an_image(space: spaces.Box, image: Image) -> bool:
    """Whether an array that cannot be encoded must not be flattened in silence either, as small ones are."""
    channels, *sides = image.shape
    *beside, second_longest, _ = sorted(space.shape)
    if not beside:
        return not image.is_float and min(sides) >= SMALLEST_SIDE
    if second_longest >= SMALLEST_SIDE and beside[-1] <= MOST_BESIDE_SIDES:
        return True
    is_brightness = not image.is_float and space.high.max() >= LOWEST_WHITE
    return is_brightness and len(space.shape) == 3 and channels in USUAL_CHANNELS and min(sides) >= TINY_SIDE


def size_of(image: Image) -> str:
    """The size of an image for people: height x width x channels."""
    channels, height, width = image.shape
    return f"{height} x {width} x {channels}"
