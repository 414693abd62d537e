"""The command line, as a person meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import gymnasium as gym
import imageio_ffmpeg
import pytest
from PIL import Image

import helpers
import t3d
from t3d.app.cli import COMMANDS, help_text, main
from t3d.app.train import parse
from t3d.config import Config, Member, TD3Config, diff
from t3d.config.presets import PRESETS, preset
from t3d.errors import UserError
from t3d.insight.best_member import known_choice
from t3d.store.reader import open_run

SMALL = ["--preset", "quick", "--total-steps", "400", "--random-steps", "100", "--eval.every-steps", "200"]
SMALL += ["--eval.episodes", "2"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    command = ["train", "Pendulum-v1", *SMALL, "--seeds", "0", "3", "--run.root", str(root), "--run.name", "demo"]
    assert main(command) == 0
    return root / "demo"


@pytest.mark.slow
def test_help_is_instant() -> None:
    assert min(time_of([sys.executable, "-m", "t3d", "--help"]) for _ in range(5)) < 0.5


def test_help_names_every_command() -> None:
    assert all(name in help_text() for name in COMMANDS)


def time_of(command: list[str]) -> float:
    begun = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begun


def test_light_commands_and_actors_never_import_torch() -> None:
    code = "import sys, t3d.app.train, t3d.actors.inline, t3d.world.evaluate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([command, "--help"])
    assert left.value.code == 0
    said = capsys.readouterr().out
    assert f"t3d {command}" in said and "{None" not in said


def test_training_says_what_was_learned_and_leaves_everything(run_folder: Path) -> None:
    for name in ("config.toml", "events.jsonl", "metrics.csv", "curve.png", "video.mp4", "best", "last"):
        assert (run_folder / name).exists(), name
    width, height = Image.open(run_folder / "curve.png").size
    assert width > 600 and height > 400


def test_the_video_shows_as_many_steps_as_it_says(run_folder: Path) -> None:
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(run_folder / "video.mp4"))
    assert frames == 302  # Pendulum's 200 steps, 100 of the next episode, and the first picture of each
    assert seconds == pytest.approx(302 / 30, rel=0.05)


def test_training_prints_what_a_newcomer_needs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "Pendulum-v1", *SMALL, "--no-video", "--run.root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "suits" not in out
    for words in (
        "Settings that differ from the defaults",
        "random_steps",
        "writing to",
        "replay",
        "Trained",
        "300 updates",
    ):
        assert words in out
    assert "curve.png" in out and "Next, try:" in out and "t3d eval" in out
    assert not list(tmp_path.rglob("video.mp4"))


def test_a_run_with_another_preset_says_which_one_suits_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = [
        "--total-steps",
        "20",
        "--random-steps",
        "10",
        "--td3.batch-size",
        "8",
        "--eval.episodes",
        "1",
        "--no-video",
    ]
    assert main(["train", "Pendulum-v1", *tiny, "--run.root", str(tmp_path), "--run.name", "run"]) == 0
    title, advice, *_ = capsys.readouterr().out.splitlines()
    assert "preset default" in title and advice.startswith("quick suits Pendulum better: --preset quick (")
    assert main(["resume", str(tmp_path / "run"), "--total-steps", "25", "--no-video"]) == 0
    assert "suits" not in capsys.readouterr().out, "a run keeps its settings"


def test_eval_plays_the_best_seed_and_can_choose(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    choice = known_choice(open_run(run_folder))
    assert choice is not None, "made at the end of training"
    assert main(["eval", str(run_folder), "--episodes", "2"]) == 0
    assert f"seed {choice.member.seed}, best policy" in capsys.readouterr().out
    named = [run_folder.name, "--root", str(run_folder.parent)]
    assert main(["eval", *named, "--episodes", "2", "--seed", "3", "--policy", "last"]) == 0
    out = capsys.readouterr().out
    assert "seed 3, last policy (step 400)" in out and "mean return" in out


def test_plot_one_run_several_runs_and_one_seed(run_folder: Path, tmp_path: Path) -> None:
    both, one = tmp_path / "both.png", tmp_path / "one.svg"
    assert main(["plot", str(run_folder), str(run_folder), "--out", str(both)]) == 0
    assert main(["plot", str(run_folder), "--seed", "3", "--out", str(one)]) == 0
    assert Image.open(both).size[0] > 600
    assert one.read_text().startswith("<?xml")


def test_record_films_another_seed(run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "film.mp4"
    assert main(["record", str(run_folder), "--seed", "3", "--out", str(out)]) == 0
    assert imageio_ffmpeg.count_frames_and_secs(str(out))[0] == 201


def test_films_and_pictures_that_cannot_be_written(run_folder: Path, tmp_path: Path) -> None:
    for out in ("film.gif", "nowhere/film.mp4"):
        assert main(["record", str(run_folder), "--out", str(tmp_path / out)]) == 2
    assert main(["plot", str(run_folder), "--out", str(tmp_path / "curve.nothing")]) == 2
    assert main(["plot", str(run_folder), "--out", str(tmp_path / "nowhere" / "curve.png")]) == 2
    assert main(["plot", str(run_folder), "--smooth", "0"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_run_made_in_python_can_be_played_by_naming_its_environment(tmp_path: Path) -> None:
    cfg = helpers.small_config(env={"id": ""}, run={"root": str(tmp_path), "name": "python"})
    list(t3d.train(cfg, make_env=lambda: gym.make("Pendulum-v1")))
    run = str(tmp_path / "python")
    assert main(["eval", run, "--episodes", "1"]) == 2
    assert main(["eval", run, "--episodes", "1", "--env", "Pendulum-v1"]) == 0


def test_a_policy_that_does_not_fit_is_refused(run_folder: Path, tmp_path: Path) -> None:
    for command in (["eval"], ["record", "--out", str(tmp_path / "film.mp4")]):
        assert main([command[0], str(run_folder), "--env", "MountainCarContinuous-v0", *command[1:]]) == 2


def test_help_may_be_cut_short() -> None:
    finished = subprocess.run(
        f"{sys.executable} -m t3d runs --help | head -1", shell=True, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in finished.stderr and "BrokenPipe" not in finished.stderr


def test_the_settings_are_shown_only_once_the_run_can_begin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "Pendulum-v7", "--preset", "quick"]) == 2
    assert capsys.readouterr().out == ""


def test_presets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in PRESETS)
    assert "suits Walker2d: 4.2 times the return of default after 300,000 steps" in out


def test_the_paper_preset_is_the_papers() -> None:
    td3 = preset("paper").td3
    assert (td3.actor_hidden, td3.critic_hidden) == ((400, 300), (400, 300))
    assert (td3.batch_size, td3.gamma, td3.tau, td3.policy_delay) == (100, 0.99, 0.005, 2)
    assert (td3.target_noise, td3.target_noise_clip, td3.actor_lr, td3.critic_lr) == (0.2, 0.5, 1e-3, 1e-3)
    assert (preset("paper").random_steps, preset("paper").replay.capacity) == (10_000, 10**6)
    assert preset("paper").noise.exploration_noise == 0.1


def test_the_default_preset_is_the_authors_later_code() -> None:
    assert diff(preset("default"), Config()) == {}
    td3 = TD3Config()
    assert (td3.actor_hidden, td3.batch_size, td3.actor_lr, Config().random_steps) == ((256, 256), 256, 3e-4, 25_000)
    assert Config().noise.exploration_noise == 0.1, "exploration is on by default"


def test_settings_come_from_defaults_preset_file_and_flags_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("total_steps = 77_000\n[td3]\ngamma = 0.5\ntau = 0.5\n")
    args = parse(["Pendulum-v1", "--preset", "quick", "--config", str(file), "--td3.tau", "0.25"])
    assert args.cfg.preset == "quick" and args.cfg.env.id == "Pendulum-v1"
    assert args.cfg.td3.policy_delay == 2, "a default"
    assert args.cfg.td3.batch_size == preset("quick").td3.batch_size, "the preset's"
    assert (args.cfg.total_steps, args.cfg.td3.gamma) == (77_000, 0.5), "the file's"
    assert args.cfg.td3.tau == 0.25, "the flag's"
    file.write_text('preset = "paper"\n[env]\nid = "Hopper-v5"\n')
    args = parse([f"--config={file}"])
    assert (args.cfg.preset, args.cfg.td3.batch_size, args.cfg.env.id) == ("paper", 100, "Hopper-v5")
    assert parse([f"--config={file}", "--preset", "paper"]) == args
    with pytest.raises(UserError, match="have preset=paper, and preset=quick is given; leave one of them out"):
        parse([f"--config={file}", "--preset", "quick"])


def test_a_runs_own_config_repeats_it(run_folder: Path) -> None:
    args = parse(["--config", str(run_folder / "config.toml")])
    assert args.cfg.env.id == "Pendulum-v1" and args.cfg.seeds == (0, 3) and args.cfg.total_steps == 400
    assert main(["train", "--config", str(run_folder / "config.toml"), "--no-video"]) == 0
    again = next(path for path in run_folder.parent.iterdir() if path != run_folder)
    for policy in ("last/seed-0.safetensors", "best/seed-3.safetensors"):
        assert (again / policy).read_bytes() == (run_folder / policy).read_bytes()


def test_the_last_of_two_presets_counts() -> None:
    assert (
        parse(["Pendulum-v1", "--preset", "quick", "--preset=paper"]).cfg
        == parse(["Pendulum-v1", "--preset", "paper"]).cfg
    )


def test_a_million_may_be_written_1e6_and_what_is_no_number_stays() -> None:
    steps = ["--total-steps", "1e6", "--replay.capacity=2e5", "--seeds", "1e1,2", "1e2", "--td3.tau", "1e-3"]
    cfg = parse(["Pendulum-v1", *steps, "--env.name", "2e2", "--run.name", "1e3", "--run.root=1e4"]).cfg
    assert (cfg.total_steps, cfg.replay.capacity, cfg.seeds, cfg.td3.tau) == (1_000_000, 200_000, (10, 2, 100), 1e-3)
    assert (cfg.env.name, cfg.run.name, cfg.run.root) == ("2e2", "1e3", "1e4")
    assert parse(["--total-steps", "1e6", "1e3"]).cfg.env.id == "1e3"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["tarin", "Pendulum-v1"], "unknown command tarin, did you mean train"),
        (["train"], "no environment given"),
        (["train", "Pendulum-v2"], "unknown environment Pendulum-v2; there is Pendulum-v1"),
        (["train", "Pendulun-v1"], "did you mean Pendulum-v1"),
        (["train", "CartPole-v1"], "continuous"),
        (["train", "nothing_here:make"], "cannot import nothing_here"),
        (["train", "Pendulum-v1", "Hopper-v5"], "one environment"),
        (["train", "Pendulum-v1", "--env.id", "Hopper-v5"], "one environment"),
        (["train", "Pendulum-v1", "--total-steps", "3000"], "leaves no steps of total_steps=3000"),
        (["train", "Pendulum-v1", "--td3.critic-hidden", "65536", "65536"], "training the networks needs"),
        (["train", "Pendulum-v1", "--td3.gama", "0.9"], "unknown flag --td3.gama, did you mean --td3.gamma"),
        (["train", "Pendulum-v1", "--td3.random-steps", "9"], "--td3.random-steps is --random-steps here"),
        (["train", "Pendulum-v1", "--td3.updates-per-step=2"], "--td3.updates-per-step is --updates-per-step here"),
        (["train", "Pendulum-v1", "--td3.normalise-observations"], "is --normalise-observations here"),
        (["train", "Pendulum-v1", "--td3.no-normalise-observations"], "is --no-normalise-observations here"),
        (["train", "Pendulum-v1", "--learning-quickly"], "unknown flag --learning-quickly (t3d train --help lists"),
        (["train", "Pendulum-v1", "--lr", "1e-3"], "error: --lr is --td3.actor-lr and --td3.critic-lr here (t3d train"),
        (["train", "Pendulum-v1", "--td3.learning_rate=1e-3"], "--td3.learning_rate is --td3.actor-lr and --td3.crit"),
        (["train", "Pendulum-v1", "--learning-starts", "9"], "--learning-starts is --random-steps here"),
        (["train", "Pendulum-v1", "--gradient-steps", "9"], "--gradient-steps is --updates-per-step here"),
        (["train", "Pendulum-v1", "--track"], "--track is --sinks wandb here"),
        (["resume", "here", "--total-timesteps", "9"], "--total-timesteps is --total-steps here (t3d resume --help"),
        (["eval", "here", "--learning-starts", "9"], "unknown flag --learning-starts (t3d eval --help"),
        (["train", "Pendulum-v1", "--preset", "quick", "--total-steps", "300"], "random-steps or train longer\n"),
        (["record", "here", "--steps", "few"], "--steps must be an integer, not 'few'"),
        (["resume", "here", "--hang-seconds", "long"], "--hang-seconds must be a number, not 'long'"),
        (["eval", "here", "--root", "there"], "there is no run named here in there"),
        (["plot", "here", "--root", "there"], "there is no run named here in there"),
        (["record", "here", "--root", "there"], "there is no run named here in there"),
        (["train", "Pendulum-v1", "--preset", "fast"], "unknown preset fast"),
        (["train", "Pendulum-v1", "--td3.batch-size", "-5"], "td3.batch_size=-5 is out of range"),
        (
            ["train", "Pendulum-v1", "--replay.capacity", "10", "--replay.sampling", "proportional"],
            "smaller than td3.batch_size",
        ),
        (["train", "Pendulum-v1", "--config", "missing.toml"], "cannot read"),
        (
            ["train", "Pendulum-v1", "--total-steps", "999999999999", "--replay.capacity", "999999999999"],
            "GiB are free",
        ),
        (["train", "Pendulum-v1", "--device", "cuda"], "no CUDA device"),
        (["train", "Pendulum-v1", "--run.root", "/proc/nowhere"], "cannot write run folders"),
        (["train", "Pendulum-v1", "--run.name", "../up"], "plain folder name"),
        (["train", "Pendulum-v1", "--seeds", "1", "1"], "repeats a seed"),
        (["eval", "no-such-run"], "there is no run named no-such-run in runs; t3d runs lists them"),
        (["plot", "no-such-run"], "there is no run named no-such-run in runs; t3d runs lists them"),
        (["record", "no-such-run"], "there is no run named no-such-run in runs; t3d runs lists them"),
        (["plot"], "at least one run"),
        (["train", "Pendulum-v1", "--td3.gamma", "high"], "--td3.gamma must be a number, not 'high'"),
        (["train", "Pendulum-v1", "--td3.gamma"], "--td3.gamma needs a value (t3d train --help"),
        (["train", "Pendulum-v1", "--seeds", "one"], "--seeds must be an integer, not 'one'"),
        (["train", "Pendulum-v1", "--device", "tpu"], "--device must be one of auto, cpu, cuda, not 'tpu' ("),
        (["train", "Pendulum-v1", "--td3.actor-hidden"], "--td3.actor-hidden has no value"),
        (["train", "Pendulum-v1", "--td3.actor-hidden", "--device", "cpu"], "--td3.actor-hidden has no value"),
        (["train", "Pendulum-v1", "--seeds="], "--seeds has no value"),
        (["eval"], "t3d eval needs RUN: the run's folder, its name under --root, or a policy file such as"),
        (["eval", "here", "--polcy", "best"], "unknown flag --polcy, did you mean --policy? (t3d eval --help lists"),
        (["eval", "here", "there"], "t3d eval does not know what to do with there"),
        (["plot", "here", "--smooth", "1.5"], "--smooth must be an integer, not '1.5'"),
        (["record", "here", "--run", "there"], "unknown flag --run"),
        (["resume"], "t3d resume needs RUN: the run's folder"),
        (["resume", "here", "--bad-values", "x"], "--bad-values must be one of clip, raise, skip, not 'x' ("),
        (["explain", "--claim", "x"], "--claim must be one of delay, overestimation, smoothing, not 'x' ("),
        (["runs", "--sort", "age"], "--sort must be one of name, return, steps, time, not 'age' ("),
        (["runs", "show"], "t3d runs show needs RUN: the run's folder"),
        (["doctor", "--deep"], "unknown flag --deep"),
        (["train", "Pendulum-v1", "--noise", "pink"], "--noise is --noise.kind here"),
        (["bench", "updates"], "error: the argument must be one of all, growth, train, update, not 'updates' ("),
        (["presets", "all"], "t3d presets does not know what to do with all"),
    ],
)
def test_a_mistake_is_one_sentence_and_code_2(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(command) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1 and words in error
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_lists_may_be_written_with_commas() -> None:
    cfg = parse(["Pendulum-v1", "--seeds", "0,1,2", "--td3.actor-hidden=32,16", "--td3.critic_hidden", "8,", "4"]).cfg
    assert (cfg.seeds, cfg.td3.actor_hidden, cfg.td3.critic_hidden) == ((0, 1, 2), (32, 16), (8, 4))
    assert parse(["--seeds", "0, 1", "2", "--env.id", "Pendulum-v1"]).cfg.seeds == (0, 1, 2)


def test_existing_name_missing_seed_and_torn_files(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["train", "Pendulum-v1", *SMALL, "--run.root", str(run_folder.parent), "--run.name", "demo"]
    assert main(command) == 2
    assert main(["eval", str(run_folder), "--seed", "9"]) == 2
    assert "has no seed 9; its seeds: 0, 3\n" in capsys.readouterr().err
    run = tmp_path / "torn"
    (run / "best").mkdir(parents=True)
    for name in ("config.toml", "events.jsonl", "best/seed-0.json", "best/seed-3.json"):
        (run / name).write_bytes((run_folder / name).read_bytes())
    for seed in (0, 3):
        whole = (run_folder / "best" / f"seed-{seed}.safetensors").read_bytes()
        (run / "best" / f"seed-{seed}.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="not a policy that T3D wrote"):
        open_run(run).policy(Member(0))
    with (run / "events.jsonl").open("a") as file:
        file.write('{"event": "eval", "st')  # a kill in the middle of a line
    assert open_run(run).evals == open_run(run_folder).evals


def test_missing_extra_names_the_pip_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "Box2D", None)  # as if it were not installed
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["train", "LunarLanderContinuous-v3"]) == 2
    assert 'pip install "t3d[box2d]"' in capsys.readouterr().err


@pytest.mark.system
def test_ones_own_environment_from_the_working_directory(tmp_path: Path) -> None:
    source = Path(helpers.__file__).read_text()
    (tmp_path / "my_world.py").write_text(source)
    command = [sys.executable, "-m", "t3d", "train", "my_world:CountingEnv", *SMALL]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "no video: my_world:CountingEnv cannot be recorded: make it accept render_mode" in finished.stdout
    assert "300 updates" in finished.stdout


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_ends_cleanly_keeps_what_was_learned_and_says_where(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "t3d", "train", "Pendulum-v1", *SMALL, "--total-steps", "1000000"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "step       400" in line:
            break
    process.send_signal(number)
    out = process.stdout.read()
    assert process.wait(timeout=30) == 128 + number
    assert "Stopped early" in out and "policy" in out
    assert ("curve.png" in out) == (number == signal.SIGINT), "to import matplotlib takes seconds on a busy machine"
    assert list(tmp_path.rglob("last/seed-0.safetensors")) and "Traceback" not in out


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        ({"uvicorn"}, "needs uvicorn"),
        ({"starlette", "uvicorn"}, "needs starlette and uvicorn"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "dash"])
def test_servers_say_what_to_install(
    command: str,
    missing: set[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("t3d.errors.find_spec", lambda name: None if name in missing else True)
    assert main([command, "nowhere"]) == 2
    assert capsys.readouterr().err.endswith(f'{sentence}; install with: pip install "t3d[{command}]"\n')
