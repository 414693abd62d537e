"""Counts the lines that ten jobs take a user of T3D and one of Stable-Baselines3, after running all of them.

    python experiments/ten_jobs.py

It trains both for a few hundred steps on Pendulum-v1, in a temporary folder. Imports count; a line that is there for
this comparison alone does not: those are in main.
"""

# ruff: noqa: PLC0415
from __future__ import annotations

import ast
import inspect
import os
import tempfile
import textwrap
from typing import Any

from gymnasium.error import DependencyNotInstalled

STEPS = 600
SETTINGS: dict[str, Any] = {"random_steps": 500, "eval.every_steps": 500, "eval.episodes": 2}


class T3D:
    """Each job with T3D; run is the one that is trained first."""

    def train(self) -> Any:
        import t3d

        return t3d.train("Pendulum-v1", total_steps=STEPS, settings=SETTINGS).finish()

    def show_progress(self) -> Any:
        import t3d

        return t3d.train("Pendulum-v1", total_steps=STEPS, settings=SETTINGS).finish(progress=True)

    def resume_after_a_kill(self, run: Any) -> Any:
        import t3d

        t3d.resume(run.path, total_steps=STEPS + 200).finish()

    def plot_the_curve(self, run: Any) -> Any:
        return run.plot()

    def evaluate(self, run: Any) -> Any:
        return run.evaluate()

    def load_and_act(self, run: Any, observation: Any) -> Any:
        import t3d

        return t3d.load_policy(run.path)(observation)

    def compare(self, run: Any, other: Any) -> Any:
        return run.compare(other)

    def fine_tune(self, run: Any) -> Any:
        import t3d

        t3d.train("Pendulum-v1", env_args={"g": 9.0}, start_from=run, total_steps=STEPS, settings=SETTINGS).finish()

    def export_to_onnx(self, run: Any) -> Any:
        return run.export()

    def record_a_video(self, run: Any) -> Any:
        return run.record()


class StableBaselines3:
    """Each job with Stable-Baselines3; run is the model that is trained first."""

    def train(self) -> Any:
        from stable_baselines3 import TD3

        return TD3("MlpPolicy", "Pendulum-v1").learn(STEPS)

    def show_progress(self) -> Any:
        from stable_baselines3 import TD3

        return TD3("MlpPolicy", "Pendulum-v1").learn(STEPS, progress_bar=True)

    def resume_after_a_kill(self, run: Any) -> Any:
        import gymnasium as gym
        from stable_baselines3 import TD3
        from stable_baselines3.common.callbacks import CheckpointCallback

        saving = CheckpointCallback(500, "checkpoints", save_replay_buffer=True)
        TD3("MlpPolicy", "Pendulum-v1").learn(STEPS, callback=saving)
        model = TD3.load("checkpoints/rl_model_500_steps", env=gym.make("Pendulum-v1"))
        model.load_replay_buffer("checkpoints/rl_model_replay_buffer_500_steps")
        model.learn(100, reset_num_timesteps=False)

    def plot_the_curve(self, run: Any) -> Any:
        import gymnasium as gym
        from stable_baselines3 import TD3
        from stable_baselines3.common.monitor import Monitor
        from stable_baselines3.common.results_plotter import plot_results

        TD3("MlpPolicy", Monitor(gym.make("Pendulum-v1"), "monitor")).learn(STEPS)
        plot_results(["monitor"], None, "timesteps", "Pendulum-v1")

    def evaluate(self, run: Any) -> Any:
        from stable_baselines3.common.evaluation import evaluate_policy

        return evaluate_policy(run, run.get_env())

    def load_and_act(self, run: Any, observation: Any) -> Any:
        from stable_baselines3 import TD3

        run.save("model")
        return TD3.load("model").predict(observation, deterministic=True)

    def fine_tune(self, run: Any) -> Any:
        import gymnasium as gym
        from stable_baselines3 import TD3

        run.save("model")
        TD3.load("model", env=gym.make("Pendulum-v1", g=9.0)).learn(STEPS)

    def export_to_onnx(self, run: Any) -> Any:
        import torch

        class Policy(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.actor = run.policy.actor

            def forward(self, observation: torch.Tensor) -> torch.Tensor:
                return self.actor(observation)  # actions in [-1, 1], which are left to be rescaled by hand

        torch.onnx.export(Policy(), torch.randn(1, 3), "policy.onnx", input_names=["observation"], dynamo=False)

    def record_a_video(self, run: Any) -> Any:
        import gymnasium as gym
        from stable_baselines3.common.vec_env import DummyVecEnv, VecVideoRecorder

        env = DummyVecEnv([lambda: gym.make("Pendulum-v1", render_mode="rgb_array")])
        env = VecVideoRecorder(env, "videos", record_video_trigger=lambda step: step == 0, video_length=200)
        observation = env.reset()
        for _ in range(200):
            observation, _, _, _ = env.step(run.predict(observation, deterministic=True)[0])
        env.close()


def lines(job: Any) -> int:
    """The statements of a job, each as many lines as it takes."""
    body = ast.parse(textwrap.dedent(inspect.getsource(job))).body[0].body  # type: ignore[attr-defined]
    return len("\n".join(ast.unparse(statement) for statement in body).splitlines())


def main() -> None:
    os.chdir(tempfile.mkdtemp(prefix="ten-jobs-"))
    print("| | T3D | Stable-Baselines3 |\n|---|---|---|")
    models = {library: library().train() for library in (T3D, StableBaselines3)}
    others = {"observation": [1.0, 0.0, 0.0], "other": T3D().train()}
    for name in [name for name in vars(T3D) if not name.startswith("_")]:
        counts = []
        for library, run in models.items():
            job = getattr(library(), name, None)
            if job is not None:
                known = {"run": run, **others}
                try:
                    job(**{key: known[key] for key in inspect.signature(job).parameters})
                except (ImportError, DependencyNotInstalled) as error:
                    print(f"not run: {name} of {library.__name__} ({error})")
            counts.append("none" if job is None else str(lines(job)))
        print(f"| {name.replace('_', ' ')} | {' | '.join(counts)} |")


if __name__ == "__main__":
    main()
