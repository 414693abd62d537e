"""What others call our settings: wrong flags and docs/migrating.md say the same."""

from __future__ import annotations

from collections.abc import Collection

THEIR_NAMES = {  # our settings: their names in Stable-Baselines3 and its zoo, CleanRL, the authors' code, TorchRL
    "algo": "rule",
    "checkpoint.every_steps": "save_freq",
    "device=cuda": "cuda",
    "env.frame_stack": "n_stack",
    "env.id": "env env_id",
    "env.num_envs": "n_envs env_per_collector",
    "env.wrappers": "env_wrapper",
    "eval.episodes": "n_eval_episodes eval_episodes",
    "eval.every_steps": "eval_freq eval_iter",
    "noise.exploration_noise": "expl_noise noise_std",
    "noise.kind": "noise noise_type",
    "noise.kind noise.exploration_noise": "action_noise",
    "normalise_observations": "normalize",
    "quiet": "verbose",
    "random_steps": "learning_starts start_timesteps init_random_frames",
    "record_every": "capture_video",
    "replay.capacity": "buffer_size",
    "replay.n_step": "n_steps",
    "replay.sampling=proportional": "prb",
    "run.name": "exp_name",
    "run.root": "log_folder",
    "seeds": "seed",
    "sinks=tensorboard": "tensorboard_log",
    "sinks=wandb": "track",
    "start_from": "load_model trained_agent",
    "td3.actor_activation td3.critic_activation": "activation activation_fn",
    "td3.actor_hidden td3.critic_hidden": "net_arch policy_kwargs hidden_sizes",
    "td3.actor_lr td3.critic_lr": "learning_rate lr",
    "td3.critics": "n_critics",
    "td3.gamma": "discount",
    "td3.policy_delay": "policy_freq policy_frequency policy_update_delay",
    "td3.target_noise": "policy_noise target_policy_noise",
    "td3.target_noise_clip": "noise_clip",
    "threads": "num_threads",
    "total_steps": "max_timesteps total_timesteps n_timesteps total_frames",
    "updates_per_step": "gradient_steps train_freq utd_ratio",
}
WITHOUT_OURS = {  # names that no setting stands for, and what there is instead
    "optimize_memory_usage": "a transition is stored once as one row, and images once",
    "save_model": "the best and the last policies are always saved",
    "stats_window_size": "metrics.csv has every episode, and plots smooth them",
    "target_update_polyak": "td3.tau is one minus it",
    "torch_deterministic": "on a CPU the same seed gives the same bits",
    "use_sde": "noise is added to actions, never to weights",
    "wandb_project_name": "T3D writes W&B's offline runs, and `wandb sync --project NAME` uploads one",
}
OTHER_NAMES = {name: ours.split() for ours, theirs in THEIR_NAMES.items() for name in theirs.split()}


def our_names(theirs: str, known: Collection[str]) -> list[str]:
    """Returns our settings for another library's name, or for one of ours in another section, if all are known here."""
    last = _last(theirs)
    same = [name for name in known if name.rpartition(".")[2] == last and not name.startswith("td7.")]
    is_known = theirs.startswith("td7.")  # and so no name of others
    names = [] if is_known else OTHER_NAMES.get(last) or (same if len(same) == 1 else [])
    return names if all(name.partition("=")[0] in known for name in names) else []


def instead_of(theirs: str) -> str:
    """Says what there is instead of a setting that only others have; empty for other names."""
    instead = WITHOUT_OURS.get(_last(theirs))
    return f"there is no {theirs} here: {instead}" if instead else ""


def _last(name: str) -> str:
    return name.removeprefix("--").rpartition(".")[2].replace("-", "_")
