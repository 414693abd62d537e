"""Which trainings belong together: runs of the same settings pool their seeds, and groups of them are compared."""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from t3d.config import Config, Member, flat, plain
from t3d.config.fields import settings_where
from t3d.config.sweeps import short
from t3d.errors import UserError
from t3d.files import readable
from t3d.insight.curves import DrawnRun
from t3d.store.reader import MARKS, Run, locate, open_run

# May differ between runs whose seeds are pooled; the title of the environment stands for its id and name.
NOT_LEARNING = settings_where(Config, lambda about: not about.get("learning", True))
MOST_NAMED = 3  # runs, or settings, in the name of a group


class Training(NamedTuple):
    """One member of a run."""

    run: Run
    member: Member

    @property
    def task(self) -> str:
        return self.run.cfg.env.label

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that affects learning, besides its seed and the environment."""
        return settings_of(self.run.cfg) | dict(self.member.values)


class Group(NamedTuple):
    """Trainings whose seeds are pooled, task by task."""

    name: str
    tasks: dict[str, list[Training]]

    @property
    def trainings(self) -> list[Training]:
        return [training for of_task in self.tasks.values() for training in of_task]


def settings_of(cfg: Config) -> dict[str, Any]:
    """Returns the settings by which runs on an environment are told apart."""
    known = flat(cfg) | {"env.num_envs": cfg.num_envs}
    return {key: value for key, value in known.items() if key not in NOT_LEARNING}


R = TypeVar("R", bound=Run | DrawnRun)


def pooled(runs: Sequence[R]) -> list[list[R]]:
    """Puts runs together that differ only in their seeds; a run that repeats a seed of the others stays apart."""
    pools: list[list[R]] = []
    for run in runs:
        for pool in pools:
            of_run, of_pool = ((cfg.env.title, cfg.sweep, settings_of(cfg)) for cfg in (run.cfg, pool[0].cfg))
            if of_run == of_pool and not {seed for other in pool for seed in other.cfg.seeds} & {*run.cfg.seeds}:
                pool.append(run)
                break
        else:
            pools.append([run])
    return pools


def joined(names: Sequence[str]) -> str:
    """Names a few things, or the first ones and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names) if more <= 0 else f"{', '.join(names[:MOST_NAMED])} and {more} more"


def read_groups(words: Sequence[str], root: Path) -> list[Group]:
    """Reads the groups that words name, each a run, a folder of runs, a pattern, or several of these with commas."""
    groups = [group for word in words for group in _groups(word, root, alone=len(words) == 1)]
    first = groups[0]
    for number, group in enumerate(groups):
        if {*group.tasks} != {*first.tasks}:
            raise UserError(
                f"{first.name} was trained on {' and '.join(first.tasks)}, but {group.name} on "
                f"{' and '.join(group.tasks)}; groups are compared on the same environments, so give every group runs "
                "of each, joined by commas"
            )
        _refuse_repeated(group, groups[:number])
    return groups


def _groups(word: str, root: Path, *, alone: bool) -> list[Group]:
    """Returns the trainings of a word as one group, or as one for each setting if they differ within a task."""
    runs = [open_run(path, root) for path in run_paths(word, root)]
    if not runs:
        raise UserError(f"{word!r} names no run")
    for run in runs:
        run.best_member()  # raises if it has no evaluation
    trainings = [Training(run, member) for run in runs for member in run.evals]
    by_task, by_settings = _grouped(trainings, "task"), _grouped(trainings, "settings")
    word_name = runs[0].path.resolve().name if len(runs) == 1 else word.rstrip("/").rpartition("/")[2] or word
    if all(len(_grouped(of_task, "settings")) == 1 for of_task in by_task.values()):
        return [Group(readable(word_name), by_task)]
    values = [of_group[0].settings for of_group in by_settings.values()]
    keys = dict.fromkeys(key for settings in values for key in settings)  # arguments of environments may differ
    differing = [key for key in keys if len({plain(settings.get(key)) for settings in values}) > 1]
    names = [joined([f"{short(key)}={plain(settings.get(key))}" for key in differing]) for settings in values]
    prefix = "" if alone else f"{readable(word_name)}: "
    both = zip(names, by_settings.values(), strict=True)
    return [Group(prefix + name, _grouped(of_group, "task")) for name, of_group in both]


def _grouped(trainings: Sequence[Training], key: Literal["task", "settings"]) -> dict[str, list[Training]]:
    groups = defaultdict(list)
    for training in trainings:
        groups[str(getattr(training, key))].append(training)
    return groups


def run_paths(word: str, root: Path) -> list[Path]:
    """Returns the folders of the runs that a word names."""
    if _is_run(Path(word)) or _is_run(root / word):
        return [locate(word, root)]
    if "," in word:
        return list(dict.fromkeys(path for part in word.split(",") if part for path in run_paths(part, root)))
    names = glob.glob(word) or glob.glob(str(root / word))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    folders = [Path(name) for name in sorted(names) if os.path.isdir(name)]  # noqa: PTH112 (Path.is_dir may raise)
    runs = [path for path in folders if _is_run(path)]
    runs = runs or [path for folder in folders for path in sorted(folder.iterdir()) if _is_run(path)]
    if not runs and any(letter in word for letter in "*?["):
        raise UserError(f"no run matches {word}, neither here nor in {root}; t3d runs lists those in a folder")
    return runs or [locate(word, root)]


def _is_run(path: Path) -> bool:
    return any(os.path.lexists(path / mark) for mark in MARKS)


def _refuse_repeated(group: Group, others: Sequence[Group]) -> None:
    """Refuses a seed that would be counted twice, and a training that would be compared with itself."""
    for task, trainings in group.tasks.items():
        runs: dict[int, Run] = {}
        for run, member in trainings:
            other = runs.setdefault(member.seed, run)
            if other is not run:
                raise UserError(
                    f"{other.path} and {run.path} both have seed {member.seed} on {task} with the same settings, and "
                    f"{group.name} would count it twice; leave one out, or name them as groups of their own"
                )
    owners = {(run.path.resolve(), member): other.name for other in others for run, member in other.trainings}
    for run, member in group.trainings:
        if owner := owners.get((run.path.resolve(), member)):
            raise UserError(f"{member.title} of {run.path} is in both {owner} and {group.name}; leave it out of one")
