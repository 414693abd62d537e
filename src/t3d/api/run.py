"""A run as its program sees it: it trains, and says what became of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from t3d.api.groups import compare, report, word_of
from t3d.api.policies import Found, PolicyEvaluation, Which, export, find_policy, recorded_best
from t3d.api.progress import page_of, shown
from t3d.api.told import live_settings, own_numbers
from t3d.config import Config, merge_named
from t3d.config.metrics import RETURN
from t3d.config.presets import as_config
from t3d.errors import NothingLeft, UserError
from t3d.events import Eval, Event, Logged, SettingsChanged
from t3d.files import display_path
from t3d.insight.comparison import Comparison
from t3d.insight.plots import draw_curves
from t3d.policy.acting import SavedPolicy
from t3d.store import reader
from t3d.store.columns import read_metric
from t3d.store.control import add_request
from t3d.store.log import newest_session, read_events
from t3d.store.metrics import KINDS
from t3d.store.summary import ALIVE, Summary, peek, read_summaries, read_summary, selected
from t3d.world.guard import EnvFactory
from t3d.world.simulators import choose_graphics

if TYPE_CHECKING:
    import threading

    from matplotlib.figure import Figure
    from pandas import DataFrame  # type: ignore[import-untyped]

    from t3d.run.live import LiveRun

Numbers: TypeAlias = NDArray[np.float64]
Seed: TypeAlias = int | str | None  # in a sweep the name of a member
Out: TypeAlias = str | Path | None  # None: in the run's folder
Axis: TypeAlias = Literal["steps", "time"]


class Source(TypedDict, total=False):
    """Which policy of a run, and where it plays."""

    seed: Seed  # None: the best one on fresh episodes
    which: Which
    env: str | None  # None: the one in which the best policies were chosen
    env_args: Mapping[str, Any] | None  # on top of those that the environment has


class Column(NamedTuple):
    """What a run reported of a metric."""

    steps: Numbers  # (T,)
    values: Numbers  # (T, M), a column for each seed, NaN where it reported nothing; (T,) of one seed


class Run(Iterator[Event], AbstractContextManager["Run"]):
    """A run, live or in its folder.

    It trains while something loops over it, which yields its events, and while `finish()` works; whatever ends that, it
    saves itself, and another loop continues it. What it has reported, its policies and pictures can be had at any time.
    """

    def __init__(
        self, path: Path | None = None, live: LiveRun | None = None, make_env: EnvFactory | None = None
    ) -> None:
        self._path, self._live, self._make_env = path, live, make_env

    @property
    def path(self) -> Path:
        """The run's folder."""
        if (path := self._folder) is None:
            raise UserError("the run has not begun: call finish(), or loop over it")
        return path

    @property
    def _folder(self) -> Path | None:
        return (self._live and self._live.path) or self._path

    @property
    def step(self) -> int:
        """How far it is, in steps of each seed."""
        if self._live is not None and self._live.path is not None:
            return self._live.step
        return 0 if self._folder is None else peek(self._folder)[1]

    def __repr__(self) -> str:
        if self._live is not None and (self._live.is_open or self._folder is None):
            return repr(self._live)
        try:
            return f"<the run {display_path(self.path)}, {peek(self.path)[0]} at step {self.step:,}>"
        except (UserError, OSError):  # it may have been removed
            return f"<the run {display_path(self.path)}, which cannot be read>"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        """What a notebook shows; nothing twice in the cell that has just trained it."""
        page = None if self._folder is None else page_of(self._folder)
        return {"text/plain": repr(self), **({"text/html": page} if page else {})}

    # training

    def __iter__(self) -> Iterator[Event]:
        return iter(self._training())

    def __next__(self) -> Event:
        return next(self._training())

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the training, which saves itself; the run stays as it is if this program does not train it."""
        if self._live is not None:
            self._live.close()

    def finish(self, progress: bool | None = None) -> Run:
        """Trains to the end, from where the run is, and shows that in a terminal or notebook; progress: or not."""
        with suppress(NothingLeft), shown(self, progress) as show:
            for event in self:
                show(event)
        return self

    def stop(self) -> None:
        """Ends the training, here or in another process of this machine; it saves itself."""
        self._request("stop") if self._is_elsewhere else self.close()

    def save(self) -> None:
        """Asks for a checkpoint, which is written before the training goes on."""
        self._request("save") if self._is_elsewhere else self._training().save()

    def log(self, **values: float) -> None:
        """Reports numbers of yours at this step; each name becomes a metric."""
        self._training().tell(Logged, metrics=own_numbers(values))

    def set(self, **settings: Any) -> None:
        """Changes settings from here on, e.g. exploration_noise=0.05 or env_args={"wind": 1.0}; a resume keeps it."""
        live = self._training()
        live.tell(SettingsChanged, values=live_settings(live.cfg, self._make_env, settings))

    @property
    def _is_elsewhere(self) -> bool:
        trains_here = self._live is not None and self._live.is_open
        return not trains_here and self._folder is not None and peek(self._folder)[0] in ALIVE

    def _request(self, action: str) -> None:
        add_request(self.path, newest_session(self.path) or {}, action)

    def _training(self) -> LiveRun:
        if self._live is None:
            from t3d.run.live import resume  # noqa: PLC0415 (imports torch)

            self._live = resume(self.path, make_env=self._make_env)
        return self._live

    # what it has reported

    @property
    def summary(self) -> Summary:
        """What `t3d runs show` says first: its settings, status, and best return."""
        return read_summary(self.path)

    @property
    def evaluations(self) -> list[Eval]:
        """Its evaluations, in order."""
        return [event for event in read_events(self.path, [Eval]) if isinstance(event, Eval)]

    def column(self, name: str, seed: Seed = None) -> Column:
        """Returns a metric, e.g. q_bias, by step and seed; docs/metrics.md has all their names."""
        metrics, columns = read_metric([self.path], name)
        if len(metrics) > 1:
            raise UserError(f"{name} has several entries; name one: {', '.join(metric.name for metric in metrics)}")
        known = columns[self.path].series(metrics[0])
        if seed is not None and None not in known:
            series = known[reader.open_run(self.path).member(seed)]
            return Column(series.steps, series.values)
        steps = np.unique(np.concatenate([series.steps for series in known.values()]))
        values = np.full((len(steps), len(known)), np.nan)
        for number, series in enumerate(known.values()):
            values[np.searchsorted(steps, series.steps), number] = series.values
        return Column(steps, values)

    def frame(self) -> DataFrame:
        """Returns everything that has numbers as a table of pandas: a row for each event, a column for each metric."""
        import pandas as pd  # noqa: PLC0415 (not a dependency)

        events = read_events(self.path, KINDS)
        return pd.DataFrame([{"event": each.event, **vars(each), **getattr(each, "metrics", {})} for each in events])

    def plot(self, metric: str = RETURN, *, seed: Seed = None, x: Axis = "steps", smooth: int = 1) -> Figure:
        """Draws a metric, the mean over seeds unless one is named; smooth: over so many reports."""
        return draw_curves([reader.open_run(self.path)], metric=metric, seed=seed, x=x, smooth=smooth)

    def policy(self, seed: Seed = None, which: Which = "best") -> SavedPolicy:
        """Loads a policy: a seed's, or the best as far as the folder says."""
        run = reader.open_run(self.path)
        return run.policy(recorded_best(run) if seed is None else run.member(seed), which)

    # what can be made of it

    def evaluate(self, episodes: int = 10, **source: Unpack[Source]) -> PolicyEvaluation:
        """Plays fresh episodes without noise; source: seed, which="last", env, env_args."""
        return evaluate(self, episodes, **source)

    def record(
        self, out: Out = None, *, episodes: int | None = None, steps: int | None = None, **source: Unpack[Source]
    ) -> Path:
        """Records a video, video.mp4 in its folder; source as in evaluate."""
        choose_graphics()  # before the environment's file can import MuJoCo
        return _found(self, source).record(out, episodes, steps)[0]

    def compare(self, *others: Run | str | Path, metric: str = RETURN, names: Sequence[str] = ()) -> Comparison:
        """Compares others with this one, as t3d.compare does."""
        return compare(self, *others, metric=metric, names=names)

    def report(self, out: Out = None) -> Path:
        """Writes one HTML file about it, report.html in its folder."""
        return report(self, out=out)

    def export(self, kind: Literal["onnx", "c"] = "onnx", out: Out = None, *, seed: Seed = None) -> Path:
        """Writes a policy as one file, after comparing it with the policy: policy.onnx or policy.c in its folder."""
        run = reader.open_run(self.path)
        return export(run, kind, out, None if seed is None else run.member(seed)).path


def train(
    env: Config | Mapping[str, Any] | str | EnvFactory = "",
    *,
    preset: str | None = None,
    total_steps: int | None = None,
    seeds: Sequence[int] | None = None,
    env_args: Mapping[str, Any] | None = None,
    name: str | None = None,
    start_from: Run | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    make_env: EnvFactory | None = None,
    stop: threading.Event | None = None,
    save: threading.Event | None = None,
) -> Run:
    """Returns a new run on an environment: its id, what makes it, a Config, or a table of settings.

    settings are by their names on the command line, e.g. {"td3.gamma": 0.98}. With start_from it goes on learning from
    what another run has learned. Setting stop ends the run with a checkpoint; setting save asks for one.
    """
    if not isinstance(env, Config | Mapping | str):
        make_env = partial(env, **env_args) if env_args else env
        env, env_args = {}, None
    values: dict[str, Any] = {
        "total_steps": total_steps,
        "seeds": seeds,
        "env.args": env_args,
    }
    values |= {"run.name": name, "start_from": start_from and word_of(start_from)}
    changes = {key: value for key, value in values.items() if value is not None}
    if twice := changes.keys() & (settings or {}).keys():
        raise UserError(f"{', '.join(sorted(twice))} is among the settings and an argument; give it once")
    cfg = merge_named(as_config(env, preset), {**changes, **(settings or {})})
    from t3d.run import live  # noqa: PLC0415 (imports torch)

    return Run(None, live.train(cfg, stop=stop, save=save, make_env=make_env), make_env)


def resume(path: str | Path, make_env: EnvFactory | None = None, **changes: Any) -> Run:
    """Returns the run in a folder, which continues from its newest checkpoint; the arguments are those of t3d resume.

    So total_steps=N trains it for longer. If cfg is given, the folder may be anything that a kill left behind: without
    a checkpoint, cfg is trained in it from the start.
    """
    from t3d.run import live  # noqa: PLC0415 (imports torch)

    return Run(Path(path).absolute(), live.resume(path, make_env=make_env, **changes), make_env)


def open_run(path: str | Path, root: str | Path = "runs", make_env: EnvFactory | None = None) -> Run:
    """Returns the run at a path, or of a name under root; make_env is for one whose environment was made in Python."""
    return Run(reader.locate(path, Path(root)).absolute(), None, make_env)


def runs(root: str | Path = "runs", search: str = "", sort: str = "time") -> list[Summary]:
    """Lists the runs in a folder whose name, environment, preset, status, tags or note contain the words of search."""
    return selected(read_summaries(Path(root))[0], search, sort)


def evaluate(run: Run | str | Path, episodes: int = 10, **source: Unpack[Source]) -> PolicyEvaluation:
    """Evaluates the best policy of a run, or one in a file, as t3d eval does; source: seed, which, env, env_args."""
    return _found(run, source).evaluate(episodes)


def _found(run: Run | str | Path, source: Source) -> Found:
    wanted: Any = {"args" if name == "env_args" else name: value for name, value in source.items() if value is not None}
    make_env = run._make_env if isinstance(run, Run) else None
    return find_policy(word_of(run), make_env=make_env, **wanted).best()
