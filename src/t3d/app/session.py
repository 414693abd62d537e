"""Shows a run from its first event to its results, for `t3d train` and `t3d resume`."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from pathlib import Path

from rich.text import Text

from t3d.alarms.watch import alarm_lines
from t3d.app.console import View, acting_in_words
from t3d.app.flags import ShowFlags
from t3d.app.sinks import SHOWN_BY
from t3d.app.tables import print_other_sets, print_sweep
from t3d.app.terminal import (
    SKIPPING,
    Output,
    PlainConsole,
    handling_signals,
    labelled,
    standard_output,
)
from t3d.config import Member
from t3d.config.sweeps import noun, swept
from t3d.errors import StoppedEarly
from t3d.events import Alarm, End, Event, Resumed, SaveFailed, Start, to_line
from t3d.files import STARTED_IN, Refused, display_path, open_log, open_plain, printable
from t3d.insight.wording import metrics_text, number_text, returned
from t3d.sinks.process import written_for
from t3d.store.best import read_fresh
from t3d.store.log import fields_of, read_events
from t3d.store.metrics import StoredEvaluation, best_of, trained
from t3d.store.reader import Run, open_run

TAIL = 2**20  # bytes read of a log that a failing run wrote to
VIDEO_STEPS = 300  # of the video after training; MuJoCo without a GPU renders about 20 frames per second


class EventStream:
    """Writes events to an output as the lines that are in the run's logs, each as soon as it happens."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._folder: Path | None = None
        self._newest = 0.0  # when the newest event happened

    def write(self, event: Event) -> None:
        if isinstance(event, Start | Resumed):
            self._folder = Path(event.folder)
        self._newest = max(self._newest, event.time)
        print(to_line(event), file=self.output, flush=True)

    def write_rest(self) -> None:
        """Writes what a run that failed logged last, which no longer reached us: how it ended."""
        times: dict[str, float] = {}
        for path in [self._folder / name for name in ("journal.jsonl", "events.jsonl")] if self._folder else []:
            with suppress(OSError, Refused), open_plain(path) as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - TAIL))
                for line in log.read(TAIL).split(b"\n"):
                    time = fields_of(line).get("time")
                    if isinstance(time, float) and time > self._newest:
                        times[line.decode()] = time
        for text in sorted(times, key=times.__getitem__):
            print(text, file=self.output, flush=True)


def show(begin: Callable[..., Iterator[Event]], flags: ShowFlags) -> int:
    """Follows the run that begins to its end, prints its results and returns the exit code."""
    output, saved = standard_output(), True
    with handling_signals() as requested, output.alone() if flags.json else nullcontext():
        loud = PlainConsole(stderr=True, force_terminal=False) if flags.json else PlainConsole()
        console = PlainConsole(quiet=True, force_terminal=False) if flags.quiet else loud
        try:
            stream = EventStream(output) if flags.json else None
            view = View(console, requested)
            end = _follow(begin(stop=requested.stop, save=requested.save), view, output, stream)
            saved, requested.answer = end.saved, SKIPPING
            run = open_run(view.folder)
            member = _show_results(run, end, view, video=flags.video)
            if flags.quiet:
                _print_in_short(run, end, member, loud)
            if output.failures:  # the command line reports it, too
                event = SaveFailed(step=end.step, text=output.lost(), failures=output.failures)
                with suppress(OSError, Refused), open_log(run.path / "journal.jsonl") as journal:
                    journal.write(f"{to_line(event)}\n".encode())
            if output.reader_left:
                path = display_path(run.path)
                print(f"stopped: nobody reads the output; t3d resume {path} continues", file=sys.stderr)  # noqa: T201
        except StoppedEarly as stopped:
            loud.print(str(stopped), soft_wrap=True)
        return requested.exit_code or (0 if saved else 1)


def _follow(events: Iterator[Event], view: View, output: Output, stream: EventStream | None) -> End:
    with closing(view):
        try:
            for event in events:
                view.requested.listen()
                if stream is not None:
                    stream.write(event)
                view.show(event)
                if output.reader_left:
                    view.requested.stop.set()
        except BaseException:
            if stream is not None:
                stream.write_rest()
            raise
    assert isinstance(event, End)  # noqa: S101 (a run that does not raise ends with End)
    return event


def _show_results(run: Run, end: End, view: View, *, video: bool) -> Member:
    console, requested = view.console, view.requested
    print_results(run, end, console)
    member = _best_member(run, end, console, requested.stop)
    alarms = alarm_lines(read_events(run.path, kinds=[Alarm]), run.cfg.members)
    for text in alarms:
        console.print(Text(f"  {text}", "yellow"), soft_wrap=True)
    if view.acting is not None:
        console.print(f"  {acting_in_words(view.acting)}", soft_wrap=True)
    if run.evals and requested.received in (None, signal.SIGINT):  # a machine that shuts down waits for seconds only
        _plot(run, console)
    if video and end.reason == "finished":
        _record(run, member, console, requested.stop)
    _print_next_commands(run, end, member, console, alarmed=bool(alarms))
    return member


def print_results(run: Run, end: End, console: PlainConsole) -> None:
    """Prints each seed's returns before training, at its best, and when last evaluated; those of a sweep by value."""
    console.print()
    console.print(_how_far(end) + Text("."))
    for member, stopped in run.stopped.items():
        text = f"at step {stopped.step:,} and stopped: {stopped.text}"
        console.print(labelled(f"  {member.title} diverged", "red", text), soft_wrap=True)
    if swept(run.cfg.members):
        print_sweep(run.cfg.members, run.evals, run.stopped, console)
    else:
        for member in run.evals:
            console.print(f"  {_returns(run, member)}", soft_wrap=True)
    print_other_sets(run.cfg.members, run.evals, run.other_sets, run.stopped, console)
    worse = [member for member, evals in run.evals.items() if _is_worse(evals)]
    if worse:
        many = f"{len(worse)} of {len(run.evals)} {noun(run.cfg.members)}s were"
        verdict = f"  {many if len(run.evals) > 1 else f'{worse[0].title} was'} never better than before training."
        pink = "" if run.cfg.noise.kind == "pink" else "; first try --noise.kind pink --noise.exploration-noise 0.3"
        advice = f'See "When it does not learn" in docs/own-environment.md{pink}'
        console.print(labelled(verdict, "yellow", advice), soft_wrap=True)
    cfg = run.cfg
    if cfg.algo != "td3" and not end.updates and end.step > cfg.steps_before_learning and cfg.updates_per_step:
        why = f"{cfg.rule_title} learns when an episode ends that began after {cfg.steps_before_learning:,} steps"
        console.print(labelled("  No update was made:", "yellow", f"{why}, and none has"), soft_wrap=True)


def _print_in_short(run: Run, end: End, member: Member, console: PlainConsole) -> None:
    returns = _returns(run, member) if run.evals else ""
    fresh = read_fresh(run.path).by_member.get(member.name)
    if fresh and run.evals:
        returns = f"{member.title}: mean return {returned(fresh)}, {_best_evaluation(run, member)}"
    console.print(Text.assemble(_how_far(end), "; " if returns else "", returns), soft_wrap=True)
    if not end.saved:
        print(f"error: the run could not be saved: {printable(end.text)}", file=sys.stderr)  # noqa: T201
    console.print(display_path(run.path), soft_wrap=True)


def _how_far(end: End) -> Text:
    about = f"{end.step:,} steps per seed in {end.seconds:,.0f} s, {end.updates:,} updates"
    return labelled("Trained" if end.reason == "finished" else "Stopped early after", "bold", about)


def _returns(run: Run, member: Member) -> str:
    first, last = run.evals[member][0], run.evals[member][-1]
    if not trained(run.evals[member]):
        return f"{member.title}: mean return {last.mean_return:,.1f} before training, not evaluated since"
    before = f"mean return {number_text(first.mean_return)} before training, " if first.updates == 0 else ""
    lately = f"{number_text(last.mean_return)} when last evaluated (step {last.step:,})"
    return f"{member.title}: {before}{_best_evaluation(run, member)}, {lately}"


def _best_evaluation(run: Run, member: Member) -> str:
    """Says what the best evaluation was, and that it is the highest of many, of which some are lucky."""
    best = best_of(run.evals[member])
    returned = f"{number_text(best.mean_return)} ± {number_text(best.std_return)}{metrics_text(best.metrics)}"
    return f"best evaluation {returned} (step {best.step:,}, chosen from {run.compared_evals(member)})"


def _is_worse(evals: Sequence[StoredEvaluation]) -> bool:
    """Whether no trained policy has reached the return of the untrained one."""
    later = trained(evals)
    return bool(later) and evals[0].updates == 0 and best_of(later).mean_return < evals[0].mean_return


def _plot(run: Run, console: PlainConsole) -> None:
    from t3d.insight.plots import plot_curves  # noqa: PLC0415 (imports matplotlib)

    try:
        plot_curves([run], run.path / "curve.png")
    except (OSError, ImportError) as error:
        console.print(f"  no curve: {getattr(error, 'strerror', None) or error}", soft_wrap=True)
    else:
        _print_path("curve", run.path / "curve.png", console)


def _best_member(run: Run, end: End, console: PlainConsole, stop: threading.Event) -> Member:
    from t3d.app.play import best_member  # noqa: PLC0415 (imports Gymnasium)
    from t3d.world.evaluate import Stopped  # noqa: PLC0415

    def check_stop() -> None:
        if stop.is_set():
            raise Stopped

    if not run.evals:
        return run.cfg.members[0]
    return best_member(run, console, check_stop, always=True) if end.reason == "finished" else run.best_member()


def _record(run: Run, member: Member, console: PlainConsole, stop: threading.Event) -> None:
    """Records in a separate process: graphics libraries need settings before their import, and may crash."""
    chosen = ["--seed", member.name] if run.evals else []
    command = [sys.executable, "-m", "t3d", "record", str(run.path), *chosen, "--steps", str(VIDEO_STEPS)]
    console.print(f"  recording {VIDEO_STEPS} steps of the best policy (--no-video skips this) ...")
    text, out, err = "", subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, stdout=out, stderr=err, errors="replace", cwd=STARTED_IN) as recording:  # noqa: S603
        while recording.returncode is None:
            with suppress(subprocess.TimeoutExpired):
                text, _ = recording.communicate(timeout=0.1)
            if stop.is_set():
                recording.terminate()
    if recording.returncode == 0:
        _print_path("video", run.path / "video.mp4", console)
    else:
        reason = (text.strip().splitlines() or ["it was interrupted"])[-1]
        console.print(f"  no video: {reason.removeprefix('error: ')}", soft_wrap=True)


def _print_next_commands(run: Run, end: End, member: Member, console: PlainConsole, *, alarmed: bool) -> None:
    """Prints the policy file and commands worth trying; after an alarm, none that trains on with the same settings."""
    policy = run.path / ("best" if run.evals else "last") / f"{member.name}.safetensors"
    if policy.is_file():
        _print_path("policy", policy, console)
    else:
        console.print(f"  no policy: {display_path(policy)} is missing", soft_wrap=True)
    path = shlex.quote(display_path(run.path))
    if not end.saved:
        console.print(labelled("\nThe run could not be saved:", "red", f"{end.text}; its end is lost"), soft_wrap=True)
        return
    if end.reason != "finished":
        exactly = "" if run.cfg.async_actors else "exactly "
        console.print(f"\nContinue {exactly}from here with:\n  t3d resume {path}", soft_wrap=True)
        return
    console.print("\nFirst see to the alarm above; then try:" if alarmed else "\nNext, try:")
    commands = {f"t3d eval {path}": "evaluate the best policy on ten fresh episodes"}
    if not alarmed and end.step >= run.cfg.total_steps:
        commands[f"t3d resume {path} --total-steps {2 * end.step}"] = "train twice as long"
    if len(run.cfg.members) == 1 and not alarmed:
        settings = shlex.quote(display_path(run.path / "config.toml"))
        commands[f"t3d train --config {settings} --seeds 0 1 2"] = "train three seeds at once with the same settings"
    if run.cfg.env.id == "Pendulum-v1" and not alarmed:
        algo = "" if run.cfg.algo == "td3" else f" --algo {shlex.quote(run.cfg.algo)}"
        hours = "" if algo else " (an hour or two on two cores)"
        commands[f"t3d train HalfCheetah-v5{algo}"] = f"train on a harder task{hours}"
    else:
        commands[f"t3d plot {path}"] = "plot the curve again; docs/metrics.md explains the other metrics"
    shown_by = [SHOWN_BY[name] for name in run.cfg.sinks if name in written_for(run.path)]
    commands |= {command.format(path=path): about for command, about in shown_by}
    for command, about in commands.items():
        console.print(Text.assemble(f"  {printable(command)}  ", (f"# {about}", "dim")), soft_wrap=True)


def _print_path(label: str, path: Path, console: PlainConsole) -> None:
    console.print(f"  {label:<7} {display_path(path)}", soft_wrap=True)
