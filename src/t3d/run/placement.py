"""What depends on the machine: the device, the engine, the threads, and whether it all fits into memory."""

from __future__ import annotations

import platform
from bisect import bisect_right
from dataclasses import replace
from typing import Any, Literal

import psutil
import torch

import t3d
from t3d import SPINS
from t3d.algo.engines import ENGINES, FASTEST_FIRST, EngineName
from t3d.algo.engines.verify import faster_threads, mismatch
from t3d.algo.rules import Rule, rule_of
from t3d.config import Config, TD3Config, plain
from t3d.config.networks import encoder_of
from t3d.config.sweeps import noun
from t3d.data.memory import bytes_needed
from t3d.data.replay import BYTES_PER_VALUE
from t3d.errors import UserError
from t3d.policy.spec import Spec

COPIES_IN_LEARNING = 5  # online, target, gradient and Adam's two moments
_faster: dict[tuple[object, ...], int] = {}  # threads, by what is computed, so that equal settings give equal bits
OF_IMAGES = ("encoder_channels", "encoder_strides", "encoder_features", "image_shift")  # in td3


def resolve(cfg: Config) -> Config:
    """Returns the configuration with this machine's device in it."""
    if cfg.device == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "device=cuda, but torch sees no CUDA device here; a run that was started on a GPU resumes on one, "
            "a new one may use --device cpu, or auto"
        )
    automatic: Literal["cpu", "cuda"] = "cuda" if torch.cuda.is_available() else "cpu"
    device = automatic if cfg.device == "auto" else cfg.device
    if cfg.engine not in ("auto", *FASTEST_FIRST[device]):
        known = ", ".join(["auto", *FASTEST_FIRST[device]])
        raise UserError(f"engine={cfg.engine} does not run on the {device}; choose one of {known}")
    if cfg.async_actors and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise UserError(f"actors={cfg.actors} needs Linux on x86-64; here only actors=inline works")
    if cfg.noise.per_env and cfg.num_envs == 1:
        raise UserError(
            "noise.per_env is a ladder over the environments of a seed, and each seed has one; "
            "use more actors than seeds, or set --env.num-envs N"
        )
    return replace(cfg, device=device)


def set_tf32_for_process(on: bool) -> None:
    """Switches TF32 on or off for all float32 matrix products and convolutions of this process on a GPU."""
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def refuse_settings_of_images(cfg: Config, spec: Spec) -> None:
    """Refuses settings that only images use where none are observed."""
    for name in () if spec.images else OF_IMAGES:
        value = getattr(cfg.td3, name)
        if value != getattr(TD3Config, name):
            raise UserError(f"td3.{name}={plain(value)} is for images, and {cfg.env.title} observes none; leave it out")


def choose_engine(cfg: Config, spec: Spec, rule: Rule, coefficients: Any) -> tuple[EngineName, str, list[str]]:
    """Returns the engine to train with, why it is not a faster one, and notes on others that compute something else."""
    candidates, seeds, settings = FASTEST_FIRST[cfg.device], cfg.member_seeds, cfg.settings_of(kind=rule.settings)
    if cfg.engine != "auto":
        if why := ENGINES[cfg.engine].refuses(rule, settings, coefficients):
            raise UserError(f"engine {cfg.engine} {why}; use --engine auto")
        candidates = candidates[candidates.index(cfg.engine) :]
    reasons, notes = list[str](), list[str]()
    for engine in candidates:
        if why := ENGINES[engine].refuses(rule, settings, coefficients):
            reasons.append(f"{engine} {why}")
            continue
        if engine == "eager" or not (
            problem := mismatch(engine, spec, settings, seeds, cfg.device, rule, coefficients)
        ):
            break
        notes.append(f"engine {engine} is not used: {problem}")
    return engine, "; ".join(reasons), notes


def set_threads(cfg: Config, spec: Spec, rule: Rule, engine: str, coefficients: Any = None) -> tuple[int, list[str]]:
    """Sets the CPU threads that torch uses, the faster number unless one was given; returns it and notes."""
    threads, notes = cfg.threads, list[str]()
    if not threads and cfg.device == "cpu":
        settings = cfg.settings_of(kind=rule.settings)
        key = (engine, spec.observation_width, spec.action_size, settings, len(cfg.members), cfg.algo)
        if key not in _faster:
            _faster[key] = faster_threads(engine, spec, settings, cfg.member_seeds, rule, coefficients)
        threads = _faster[key]
        if threads > 1 and not t3d.WAITS_SHORTLY:
            notes = [
                f"one thread is used instead of {threads}: torch was imported before t3d, and then threads become very "
                f"slow when other programs run; import t3d first, or set {SPINS}=2000 before Python starts"
            ]
            threads = 1
    if threads:
        torch.set_num_threads(threads)
    return torch.get_num_threads(), notes


def replay_device(cfg: Config, spec: Spec) -> str:
    """Returns where the replay fits: beside the networks, or else in host memory; raises if it fits nowhere."""
    room = {device: _free_bytes(device) for device in dict.fromkeys([cfg.device, "cpu"])}
    rule = rule_of(cfg.algo, spec)
    learned = len(cfg.members) * rule.parameters(spec, cfg.settings_of(kind=rule.settings))
    agents = 2 if cfg.log.diagnose_every_steps else 1  # diagnostics try updates on a copy
    learning = agents * (learned * BYTES_PER_VALUE * COPIES_IN_LEARNING + batch_bytes(cfg, spec))
    fewer = f"train fewer {noun(cfg.members)}s at once"
    if learning > room[cfg.device]:
        smaller = f"{cfg.section}.batch_size or the images" if spec.images else "actor_hidden and critic_hidden"
        raise UserError(
            f"training the networks needs {learning / 2**30:,.1f} GiB and {room[cfg.device] / 2**30:,.1f} GiB are "
            f"free; make {smaller} smaller, or {fewer}"
        )
    room[cfg.device] -= learning
    if spec.images and cfg.replay.frames_on_disk:
        room = {"cpu": room["cpu"]}
    needed = bytes_needed(spec, cfg)
    fitting = [device for device, free in room.items() if needed <= free]
    if not fitting:
        most, rows = max(room.values()), range(1, cfg.replay.capacity)
        capacity = bisect_right(rows, 0.9 * most, key=lambda capacity: bytes_needed(spec, cfg, capacity))
        fits = f"replay.capacity={capacity}" if capacity >= cfg.settings_of().batch_size else "not even a batch"
        on_disk = ", --replay.frames-on-disk keeps images out of memory"
        raise UserError(
            f"the replay needs {needed / 2**30:,.1f} GiB and {most / 2**30:,.1f} GiB are free; "
            f"{fits} would fit{on_disk if spec.images and not cfg.replay.frames_on_disk else ''}, or {fewer}"
        )
    return fitting[0]


def batch_bytes(cfg: Config, spec: Spec) -> int:
    """What images need in an update: s and s2, as they are and shifted, and what the encoder computes, twice."""
    encoder = encoder_of(spec, cfg.td3)
    if encoder is None:
        return 0
    each = 4 * spec.observation_width + 2 * BYTES_PER_VALUE * encoder.activations
    return len(cfg.members) * cfg.td3.batch_size * each


def _free_bytes(device: str) -> int:
    return int(torch.cuda.mem_get_info()[0] if device == "cuda" else psutil.virtual_memory().available)
