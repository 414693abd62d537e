"""The fifteen steps of a run, with the numbers of its newest reported update."""

from __future__ import annotations

from typing import Any

from t3d.config import Config, Member, TD3Config
from t3d.files import CORRUPT_ERRORS, read
from t3d.insight.fifteen_steps import LETTERS, fifteen_texts
from t3d.policy.files import MOST_JSON_BYTES, read_description
from t3d.store.columns import Columns
from t3d.store.reader import Run

STEP_OF = {  # which step makes each part of a trace; types.UpdateTrace says the same
    "pi2": 5,
    **{"eps": 6, "a2": 6},
    "q2": 7,
    "v2": 8,
    "y": 9,
    "q": 10,
    **{"td": 11, "loss": 11, "weight": 11},
    **{"pi": 13, "q_pi": 13, "actor_loss": 13},
}


def steps_of(index: Columns, asked: str | None) -> dict[str, Any]:
    """Returns the steps of a member, the first unless one is asked for by its name or seed."""
    member = index.members[0] if asked is None else _member(index, asked)
    event = index.newest_update(member)
    values = {} if event is None else {str(name): value for name, value in event.values.items()}
    about = {
        "member": member.name,
        "updates": event and event.updates,
        "step": event and event.step,
        "time": event and event.time,
        "letters": LETTERS,
        "values": values,
    }
    if index.cfg.rule != "td3":
        return {**about, "steps": []}
    td3 = index.cfg.td3_of(member)
    texts = fifteen_texts(index.cfg, td3, images=_observes_images(index, member))
    steps = [
        {
            "number": number,
            **text._asdict(),
            "values": {name: value for name, value in values.items() if STEP_OF.get(name) == number},
            "settings": settings_of_step(index.cfg, td3).get(number, {}),
        }
        for number, text in enumerate(texts, 1)
    ]
    return {**about, "steps": steps}


def settings_of_step(cfg: Config, td3: TD3Config) -> dict[int, dict[str, Any]]:
    """Returns the settings that the formula of each step is about, by their names."""
    return {
        1: {"replay.capacity": cfg.replay.capacity},
        2: {"td3.actor_hidden": list(td3.actor_hidden)},
        3: {"td3.critics": td3.critics, "td3.critic_hidden": list(td3.critic_hidden)},
        4: {"td3.batch_size": td3.batch_size},
        6: {"td3.target_noise": td3.target_noise, "td3.target_noise_clip": td3.target_noise_clip},
        8: {"td3.aggregate": td3.aggregate},
        9: {"td3.gamma": td3.gamma},
        11: {"td3.critic_loss": td3.critic_loss},
        12: {"td3.critic_lr": td3.critic_lr},
        13: {"td3.policy_delay": td3.policy_delay, "td3.actor_lr": td3.actor_lr},
        14: {"td3.policy_delay": td3.policy_delay, "td3.tau": td3.tau},
        15: {"td3.policy_delay": td3.policy_delay, "td3.tau": td3.tau},
    }


def _member(index: Columns, asked: str) -> Member:
    return Run(index.path, index.cfg, {member: [] for member in index.members}).member(asked)


def _observes_images(index: Columns, member: Member) -> bool:
    """Whether the policy's file says so; settings say it only of images that T3D renders itself."""
    try:
        return bool(read_description(read(index.path / "last" / f"{member.name}.json", MOST_JSON_BYTES)).get("images"))
    except CORRUPT_ERRORS:
        return index.cfg.env.pixels > 0
