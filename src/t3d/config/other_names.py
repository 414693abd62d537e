"""What settings are called in other libraries, so that somebody who types such a name is told ours."""

from __future__ import annotations

from collections.abc import Collection

SB3, CLEANRL, AUTHORS = "Stable-Baselines3", "CleanRL", "the authors' code"
OTHER_NAMES: dict[str, tuple[str, tuple[str, ...]]] = {  # theirs: our settings, and whose name it is
    "action_noise": ("noise.kind noise.exploration_noise", (SB3,)),
    "batch_size": ("td3.batch_size", (SB3, CLEANRL, AUTHORS)),
    "buffer_size": ("replay.capacity", (SB3, CLEANRL)),
    "capture_video": ("record_every", (CLEANRL,)),
    "cuda": ("device=cuda", (CLEANRL,)),
    "discount": ("td3.gamma", (AUTHORS,)),
    "env": ("env.id", (AUTHORS,)),
    "env_id": ("env.id", (CLEANRL,)),
    "eval_freq": ("eval.every_steps", (SB3, AUTHORS)),
    "exp_name": ("run.name", (CLEANRL,)),
    "expl_noise": ("noise.exploration_noise", (AUTHORS,)),
    "exploration_noise": ("noise.exploration_noise", (CLEANRL,)),
    "gamma": ("td3.gamma", (SB3, CLEANRL)),
    "gradient_steps": ("updates_per_step", (SB3,)),
    "learning_rate": ("td3.actor_lr td3.critic_lr", (SB3, CLEANRL)),
    "learning_starts": ("random_steps", (SB3, CLEANRL)),
    "lr": ("td3.actor_lr td3.critic_lr", ()),
    "max_timesteps": ("total_steps", (AUTHORS,)),
    "n_envs": ("env.num_envs", (SB3,)),
    "n_eval_episodes": ("eval.episodes", (SB3,)),
    "n_steps": ("replay.n_step", (SB3,)),
    "net_arch": ("td3.actor_hidden td3.critic_hidden", (SB3,)),
    "noise_clip": ("td3.target_noise_clip", (CLEANRL, AUTHORS)),
    "num_envs": ("env.num_envs", (CLEANRL,)),
    "policy_delay": ("td3.policy_delay", (SB3,)),
    "policy_freq": ("td3.policy_delay", (AUTHORS,)),
    "policy_frequency": ("td3.policy_delay", (CLEANRL,)),
    "policy_kwargs": ("td3.actor_hidden td3.critic_hidden", (SB3,)),
    "policy_noise": ("td3.target_noise", (CLEANRL, AUTHORS)),
    "seed": ("seeds", (SB3, CLEANRL, AUTHORS)),
    "start_timesteps": ("random_steps", (AUTHORS,)),
    "target_noise_clip": ("td3.target_noise_clip", (SB3,)),
    "target_policy_noise": ("td3.target_noise", (SB3,)),
    "tau": ("td3.tau", (SB3, CLEANRL, AUTHORS)),
    "tensorboard_log": ("sinks=tensorboard", (SB3,)),
    "total_timesteps": ("total_steps", (SB3, CLEANRL)),
    "track": ("sinks=wandb", (CLEANRL,)),
    "train_freq": ("updates_per_step", (SB3,)),
    "verbose": ("quiet", (SB3,)),
}


def our_names(theirs: str, known: Collection[str]) -> list[str]:
    """Returns our settings for another library's name, with or without a section, if all of them are known here."""
    ours, _ = OTHER_NAMES.get(theirs.rpartition(".")[2].replace("-", "_"), ("", ()))
    names = ours.split()
    return names if all(name.partition("=")[0] in known for name in names) else []
