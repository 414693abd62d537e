"""Searches settings with Optuna: trials side by side as members of runs, and what the best are worth on fresh seeds."""

from __future__ import annotations

import re
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace as with_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from t3d.algo.rules import with_own_settings
from t3d.api.progress import shown
from t3d.api.run import resume, train
from t3d.config import Config, flat, merge_named, plain
from t3d.config.fields import known_settings
from t3d.config.merging import to_toml
from t3d.config.presets import as_config
from t3d.config.schedules import value_of
from t3d.config.settings import RunConfig
from t3d.config.sweeps import ENV_ARGS, counted, format_sweep
from t3d.errors import Diverged, NothingLeft, StoppedEarly, UserError, check_installed, did_you_mean
from t3d.events import Eval
from t3d.files import Refused, display_path, error_text, open_log, replace
from t3d.insight.comparison import Comparison
from t3d.insight.comparison import compare as compare_groups
from t3d.insight.drawing import save
from t3d.insight.groups import Group, Training, settings_of
from t3d.insight.wording import number_text
from t3d.modules import is_own
from t3d.run.origin import with_full_origin
from t3d.store import reader
from t3d.store.folder import folder_name
from t3d.store.lock import one_at_a_time, try_lock
from t3d.world.guard import EnvFactory

if TYPE_CHECKING:
    import threading

    import optuna

Values: TypeAlias = dict[str, Any]  # of settings, by their names
FORM = "write FIELD=LOW..HIGH, FIELD=LOW..HIGH:log or FIELD=V1,V2, e.g. td3.critic_lr=1e-4..3e-3:log"
SAME_FOR_ALL = ("seeds", "sweep", "total_steps", "start_from")  # or trials could not be compared
DIGITS = 6  # of numbers that are tried, which are in names of files; chosen
COMPARED = 3  # trials that the verdict trains again
KEPT = 1 / 3  # of a run that trains alone: until then its trial is not stopped; chosen


class Tuning(NamedTuple):
    """What a search found."""

    path: Path
    study: optuna.Study
    points: dict[str, Values]  # the defaults and the best trials
    best: str  # which trial of these did best in the comparison
    comparison: Comparison | None  # on fresh seeds; None: others still train

    def __repr__(self) -> str:
        verdict = " ".join(self.comparison.sentences) if self.comparison else "no verdict while others train"
        return f"<{counted(len(self.study.trials), 'trial')}; {self.best}: {_text(self.points[self.best])}; {verdict}>"


def tune(
    env: Config | Mapping[str, Any] | str,
    space: Iterable[str],
    *,
    trials: int = 64,
    together: int = 16,
    sampler: Literal["tpe", "random"] = "tpe",
    storage: str = "",
    fresh_seeds: int = 5,
    preset: str | None = None,
    settings: Mapping[str, Any] | None = None,
    make_env: EnvFactory | None = None,
    stop: threading.Event | None = None,
    progress: bool | None = None,
) -> Tuning:
    """Searches settings, e.g. ["td3.gamma=0.95..0.999", "td3.critic_lr=1e-4..3e-3:log"], and judges the best.

    The same call continues a search, and several processes share its trials; so many train together as one run. env,
    preset and settings are the defaults to compare with, as for t3d.train.
    """
    check_installed("t3d tune", ["optuna"], "tune")
    cfg = with_full_origin(with_own_settings(merge_named(as_config(env, preset), settings or {})))
    for what, count, least in (("trials", trials, 1), ("together", together, 1), ("fresh_seeds", fresh_seeds, 2)):
        if count < least:
            raise UserError(f"{what}={count} is too few; give at least {least}")
    if sampler not in ("tpe", "random"):
        raise UserError(f"sampler={sampler} is neither tpe nor random")
    if cfg.sweep:
        raise UserError(f"a search has sweeps of its own; leave out {plain(cfg.sweep)}, or search these settings")
    from optuna.exceptions import ExperimentalWarning, StorageInternalError  # noqa: PLC0415 (an extra, which takes a second)

    searched = _space(words := [*space], cfg)
    folder = Path(cfg.run.root).absolute() / (cfg.run.name or f"tune-{folder_name(cfg)}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # its pictures
        warnings.filterwarnings("ignore", message="The reported value is ignored")  # after a resume
        study = _open_study(folder, storage, sampler, cfg, words)
        search = Search(cfg, searched, folder, study, not storage, make_env, stop, progress)
        try:
            while search.train_next(trials, together):
                pass
            return search.judge(fresh_seeds)
        except StorageInternalError as error:
            raise UserError(f"the study's database failed ({error}); the same command continues") from None


class Search(NamedTuple):
    """The trials of a study, of which this process trains those that no other does."""

    base: Config
    space: dict[str, optuna.distributions.BaseDistribution]
    folder: Path
    study: optuna.Study
    is_local: bool  # whether all who share the study see the folder
    make_env: EnvFactory | None
    stop: threading.Event | None
    progress: bool | None

    def train_next(self, trials: int, together: int) -> bool:
        """Trains what nobody else does; returns whether there was any."""
        with ExitStack() as claims:
            asked = self._claim(trials, together, claims)
            if asked:
                which = f"trials {asked[0].number} to {asked[-1].number}, side by side"
                which = which if len(asked) > 1 else f"trial {asked[0].number}"
                self._say(f"{display_path(self.folder)}: {which}, of {trials}")
                self._train_trials(asked)
        return bool(asked)

    def _claim(self, trials: int, together: int, claims: ExitStack) -> list[optuna.Trial]:
        """Takes trials whose process has ended, or asks for new ones; a lock says that somebody trains them."""
        import optuna  # noqa: PLC0415

        with one_at_a_time(self.folder):
            for lock in dict.fromkeys(map(self._lock, self._in_state("RUNNING"))):
                # on another machine, which shares only the database, its lock is in another folder
                if (self.is_local or lock.exists()) and try_lock(claims.enter_context(open_log(lock))):
                    left = [trial for trial in self.study.trials if self._lock(trial) == lock]
                    for trial in left:
                        if len(trial.params) < len(self.space):  # killed while it asked
                            self.study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
                    whole = [trial for trial in left if len(trial.params) == len(self.space)]
                    if any(trial.state.name == "RUNNING" for trial in whole):
                        return [optuna.Trial(self.study, trial._trial_id) for trial in whole]
            count = min(
                together if self.side_by_side else 1, trials - len(self.study.trials) + len(self._in_state("FAIL"))
            )
            asked = [self.study.ask(self.space) for _ in range(count)]
            for new in asked:
                new.set_user_attr("first", asked[0].number)
            if asked:
                try_lock(claims.enter_context(open_log(self._lock(asked[0]))))
            return asked

    def _train_trials(self, asked: Sequence[optuna.Trial]) -> None:
        """Trains trials together and tells the study their scores; one that diverged or fell behind has none."""
        import optuna  # noqa: PLC0415

        points = list(map(self._point, asked))
        alone = asked[0] if len(asked) == 1 else None
        trainings = self._train(self._lock(asked[0]).stem, points, self.base.seeds, alone)
        for trial, row in zip(asked, self._compared(trainings, map(_text, points)).rows, strict=True):
            is_lost = "stopped" in trial.user_attrs or any(seed.diverged for seed in row.scored.seeds)
            state = optuna.trial.TrialState.PRUNED if is_lost else optuna.trial.TrialState.COMPLETE
            self.study.tell(trial, None if is_lost else row.mean.value, state, skip_if_finished=True)
        self._lock(asked[0]).unlink(missing_ok=True)
        for best in self._ranked()[:1]:
            self._say(f"best so far: trial {best.number}, {number_text(best.value)} with {_text(self._point(best))}")

    def _train(
        self, name: str, points: Sequence[Values], seeds: Sequence[int], alone: optuna.Trial | None = None
    ) -> list[list[Training]]:
        """Trains points as one run, or each in a run of its own."""
        distinct, found = {_text(point): point for point in points}, dict[str, list[Training]]()
        for number, texts in enumerate([[*distinct]] if self.side_by_side else [[text] for text in distinct]):
            values = {tuple(distinct[text].values()): text for text in texts}
            own = {"seeds": seeds, "run.root": str(self.folder), "run.name": f"{name}-{number}" if number else name}
            of_one: Values = {"sweep": [format_sweep([*self.space], values)]} if len(texts) > 1 else distinct[texts[0]]
            run = self._train_run(merge_named(self.base, {**of_one, **own}), alone)
            for member in run.evals:
                text = values[tuple(dict(member.values).values())] if member.values else texts[0]
                found.setdefault(text, []).append(Training(run, member))
        return [found[_text(point)] for point in points]

    def _train_run(self, cfg: Config, alone: optuna.Trial | None) -> reader.Run:
        path, values = self.folder / cfg.run.name, defaultdict[int, list[float]](list)
        begun = resume(path, self.make_env, cfg=cfg, stop=self.stop) if path.is_dir() else None
        run = begun or train(cfg, make_env=self.make_env, stop=self.stop)
        with suppress(NothingLeft, Diverged), shown(run, self.progress) as show:
            for event in run:
                show(event)
                if alone is not None and isinstance(event, Eval) and event.chooses and event.updates > 0:
                    score = cfg.criterion.rank(event.mean_return, event.metrics)[0]
                    values[event.step].append(-score if cfg.criterion.lowest else score)
                    if len(values[event.step]) == len(cfg.seeds):
                        alone.report(float(np.mean(values[event.step])), event.step)
                        if event.step < cfg.total_steps and alone.should_prune():
                            alone.set_user_attr("stopped", event.step)
                            break
            if self.stop is not None and self.stop.is_set():
                raise StoppedEarly(f"stopped; the same command continues the search in {display_path(self.folder)}")
        return reader.open_run(path)

    def _compared(self, trainings: Sequence[list[Training]], names: Iterable[str]) -> Comparison:
        task, both = self.base.env.label, zip(names, trainings, strict=True)
        return compare_groups([Group(name, {task: of_point}) for name, of_point in both], self.base.criterion.metric)

    @property
    def side_by_side(self) -> bool:
        """Whether trials can be members of one run."""
        return all(_can_differ(self.base, *setting) for setting in self.space.items())

    def _in_state(self, state: str) -> list[optuna.trial.FrozenTrial]:
        return [trial for trial in self.study.trials if trial.state.name == state]

    def _point(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> Values:
        """Returns what a trial trains with."""
        return _values({field: trial.params[field] for field in self.space})

    def _ranked(self) -> list[optuna.trial.FrozenTrial]:
        """Returns the trials that have a score, the best first."""
        sign = 1 if self.base.criterion.lowest else -1
        return sorted(self._in_state("COMPLETE"), key=lambda trial: sign * (trial.value or 0.0))

    def _lock(self, trial: optuna.Trial | optuna.trial.FrozenTrial) -> Path:
        """Returns what is locked while a trial and those beside it train; the journal is not trusted with paths."""
        first = trial.user_attrs.get("first")
        return self.folder / f"trials-{first if type(first) is int else trial.number:04d}.lock"

    def _say(self, text: str) -> None:
        if self.progress is not False:
            print(text, file=sys.stderr)  # noqa: T201

    def judge(self, fresh: int) -> Tuning:
        """Trains the best trials and the defaults on seeds that no trial had, compares them, and writes the best."""
        ranked, known = self._ranked(), flat(self.base)
        points = {"defaults": {field: known[field] for field in self.space}}
        for trial in ranked:
            if len(points) <= COMPARED and (point := self._point(trial)) not in points.values():
                points[f"trial {trial.number}"] = point
        tuning = Tuning(self.folder, self.study, points, [*points][min(1, len(points) - 1)], None)
        with open_log(self.folder / "verdict.lock") as lock:
            if self._in_state("RUNNING") or not try_lock(lock):
                self._say("others still train; the last one, or this command again, comes to the verdict")
                return tuning
            if not ranked:
                raise UserError(f"no trial in {display_path(self.folder)} has a score: all diverged; search others")
            self._say(f"the verdict: {', '.join(points)}, each with {counted(fresh, 'fresh seed')}")
            begin = max(self.base.seeds) + 1
            name = "-".join(["verdict", *(name.removeprefix("trial ") for name in [*points][1:]), f"{fresh}-seeds"])
            comparison = self._compared(self._train(name, [*points.values()], range(begin, begin + fresh)), points)
            sign = 1 if self.base.criterion.lowest else -1
            best = min(comparison.rows[1:] or comparison.rows, key=lambda row: sign * row.mean.value).name
            about = [f"{best}, the best of the search on fresh seeds", *comparison.sentences]
            cfg = with_fields(merge_named(self.base, points[best]), run=RunConfig())
            replace(self.folder / "best.toml", ("".join(f"# {line}\n" for line in about) + to_toml(cfg)).encode())
        _draw(self.study, self.folder)
        return tuning._replace(best=best, comparison=comparison)


def _space(words: list[str], cfg: Config) -> dict[str, optuna.distributions.BaseDistribution]:
    """Reads what to search, FIELD=LOW..HIGH[:log] or FIELD=V1,V2 each."""
    space = {}
    for word in words:
        field, _, text = word.partition("=")
        field = field.strip().replace("-", "_")
        if not text:
            raise UserError(f"space={word!r} cannot be read; {FORM}")
        if field in space:
            raise UserError(f"space names {field} twice; give it once")
        _refuse_field(field, cfg)
        try:
            space[field] = _distribution(text, is_whole=type(flat(cfg)[field]) is int)
        except ValueError as error:
            raise UserError(f"space={word!r} cannot be searched: {error}") from None
        about = vars(space[field])
        for value in about.get("choices") or (about["low"], about["high"]):
            merge_named(cfg, _values({field: value}))  # raises if it is no value of this setting
    if not space:
        raise UserError(f"there is nothing to search: name settings after --space; {FORM}")
    return space


def _refuse_field(field: str, cfg: Config) -> None:
    known, about, (_, _, argument) = flat(cfg), known_settings(Config).get(field, {}), field.partition(ENV_ARGS)
    if field not in known and argument:
        raise UserError(f"{field} has no value to compare with; say what it is now: --env.args {argument}=VALUE")
    if field not in known:
        hint = did_you_mean(field if "." in field else f"td3.{field}", known)
        raise UserError(f"there is no setting {field}{hint}")
    if field in SAME_FOR_ALL or field.startswith("eval.") or not about.get("learning", True):
        raise UserError(f"{field} cannot be searched: it is the same for all trials, or they could not be compared")
    if argument in cfg.env.schedule:
        raise UserError(f"{argument} is searched and in env.schedule; leave it out of one of them")


def _distribution(text: str, *, is_whole: bool) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: PLC0415

    low, dots, high = text.partition("..")
    if not dots:
        words = re.split(r",(?![^\[]*\])", text)  # lists have commas of their own
        if len(words) < 2 or len({*words}) < len(words):
            raise ValueError("it needs two or more values, each only once")
        return CategoricalDistribution(words)
    ends, log = [value_of(low), value_of(high.removesuffix(":log"))], high.endswith(":log")
    if not {*map(type, ends)} <= {int, float} or ends[0] >= ends[1]:
        raise ValueError(f"it needs two numbers, the lower one first; {FORM}")
    if is_whole and {*map(type, ends)} == {int}:
        return IntDistribution(ends[0], ends[1], log=log)
    return FloatDistribution(ends[0], ends[1], log=log)


def _values(params: Mapping[str, Any]) -> Values:
    """Returns what a trial trains with: numbers as names of files have them, and of choices the values."""
    values: Values = {}
    for field, suggested in params.items():
        value = value_of(suggested) if isinstance(suggested, str) else suggested
        value = float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        values[field] = tuple(value) if isinstance(value, list) else value
    return values


def _can_differ(cfg: Config, field: str, values: optuna.distributions.BaseDistribution) -> bool:
    """Whether members of a run may have different values of a setting; those of rules of the user's own may not."""
    if is_own(cfg.algo) and field.startswith(("td3.", "own.")):
        return False
    choices = [*_values({word: word for word in getattr(values, "choices", ())}).values()]
    are_numbers = all(isinstance(value, int | float) for value in choices)
    return are_numbers and (field.startswith(ENV_ARGS) or known_settings(Config).get(field, {}).get("sweep", False))


def _text(values: Values) -> str:
    return ", ".join(f"{field}={plain(value)}" for field, value in values.items())


def _open_study(folder: Path, storage: str, sampler: str, cfg: Config, words: Sequence[str]) -> optuna.Study:
    """Opens the study, which is that of an earlier call or a new one: a journal, lines of JSON, or a database."""
    import optuna  # noqa: PLC0415
    from optuna.storages import RDBStorage  # noqa: PLC0415
    from optuna.storages.journal import JournalFileBackend, JournalStorage  # noqa: PLC0415

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    file, direction = folder / "study.jsonl", "minimize" if cfg.criterion.lowest else "maximize"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with one_at_a_time(folder):
            # Optuna unpickles only what it keeps in Redis.
            backend: Any = RDBStorage(storage) if storage else JournalStorage(JournalFileBackend(str(file)))
            about: Any = {"direction": direction, "load_if_exists": True, "study_name": folder.name}
            study = optuna.create_study(storage=backend, **about)
            _refuse_other(study, folder, cfg, words)
    except UserError:
        raise
    except (OSError, Refused) as error:
        raise UserError(f"cannot write {display_path(folder)}: {error_text(error)}") from None
    except Exception as error:  # of a file or a driver; a URL may hold a password, which is written nowhere
        where = "the database of --storage" if storage else display_path(file)
        raise UserError(f"Optuna cannot use {where} ({type(error).__name__}): is it right, and all there?") from None
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study.sampler = samplers[sampler](seed=len(study.trials))  # two processes must not try the same
    study.pruner = optuna.pruners.MedianPruner(n_warmup_steps=int(KEPT * cfg.total_steps))
    return study


def _refuse_other(study: optuna.Study, folder: Path, cfg: Config, words: Sequence[str]) -> None:
    """Refuses to mix trials that cannot be compared."""
    measured = {name: value for name, value in flat(cfg).items() if name.startswith(("eval.", "env."))}
    measured |= {"seeds": cfg.seeds, "space": tuple(sorted(words))}
    ours = {name: plain(value) for name, value in (settings_of(cfg) | measured).items()}
    theirs = study.user_attrs.get("settings", ours)
    for name in {**ours, **theirs}:
        if (before := theirs.get(name)) != (now := ours.get(name)):
            where = f"{display_path(folder)} has a study with {name}={before}, and this one has {now}"
            raise UserError(f"{where}; say the same, or give this one another --run.name")
    study.set_user_attr("settings", ours)


def _draw(study: optuna.Study, folder: Path) -> None:
    """Draws Optuna's pictures: the history, the values of each setting, and how much each matters."""
    import matplotlib as mpl  # noqa: PLC0415 (0.5 s)
    import optuna.visualization.matplotlib as optunas  # noqa: PLC0415
    from matplotlib import pyplot  # noqa: PLC0415

    drawn: dict[str, Any] = {"history": optunas.plot_optimization_history, "slices": optunas.plot_slice}
    for name, draw in {**drawn, "importances": optunas.plot_param_importances}.items():
        style = mpl.rc_context({"figure.constrained_layout.use": True})
        with style, pyplot.ioff(), suppress(ValueError, RuntimeError):  # scores may be equal, or of one
            figure = np.ravel(draw(study))[0].figure
            save(figure, folder / f"{name}.png")
            pyplot.close(figure)
