"""Settings of the algorithm and of the replay buffer. Imports no torch."""

from __future__ import annotations

from typing import Literal

from t3d.config.fields import Section, setting
from t3d.errors import UserError

Activation = Literal["relu", "elu", "gelu", "silu", "tanh"]


class RuleConfig(Section, prefix="own."):
    """What every algorithm has; a rule of the user's own inherits from it and adds settings of its own."""

    gamma: float = setting(0.99, between=(0, 1), sweep=True, extreme=0.9)
    """Discount factor (γ)."""
    batch_size: int = setting(256, between=(1, 10**6), extreme=17)
    """Batch size (N), for each seed."""
    actor_lr: float = setting(3e-4, between=(0, 1), sweep=True, live=True, extreme=1e-2)
    """Adam's learning rate for the actor."""
    critic_lr: float = setting(3e-4, between=(0, 1), sweep=True, live=True, extreme=1e-2)
    """Adam's learning rate for the critics, and for the encoder of images."""
    policy_delay: int = setting(2, between=(1, 10**6), extreme=3)
    """Critic updates per update of the actor, and in TD3 of the target networks (d)."""
    target_noise: float = setting(0.2, between=(0, 10), sweep=True, no_effect_without="target_noise_clip", extreme=0.7)
    """Standard deviation of the noise on target actions, as a fraction of half the action range (σ̃)."""
    target_noise_clip: float = setting(0.5, between=(0, 10), sweep=True, no_effect_without="target_noise", extreme=0.05)
    """Clipping limit of that noise (c)."""
    critics: int = setting(2, between=(1, 1000), extreme=3, must_fit=True)
    """Critics per seed; TD3 has two."""
    actor_hidden: tuple[int, ...] = setting((256, 256), between=(1, 65_536), extreme=(16, 17), must_fit=True)
    """Hidden layer sizes of the actor."""
    critic_hidden: tuple[int, ...] = setting((256, 256), between=(1, 65_536), extreme=(16, 17), must_fit=True)
    """Hidden layer sizes of each critic."""


class TD3Config(RuleConfig, prefix="td3."):
    """TD3. Defaults are those of the authors' later code."""

    tau: float = setting(0.005, between=(0, 1), sweep=True, extreme=0.5)
    """How far the target networks move towards the online networks in an update (τ)."""
    aggregate: Literal["min", "mean", "min_of_random_2", "truncated"] = setting("min", optional=True)
    """How the values of the target critics become one; truncated: their mean without the highest."""
    drop_highest: int = setting(1, between=(1, 999), used_with=("aggregate", "truncated"), extreme=2)
    """Critics whose values aggregate=truncated leaves out."""
    actor_objective: Literal["first", "mean", "min"] = setting("first", optional=True, fused=("first", "mean"))
    """Whose value the actor maximises: the first critic's, or the mean or smallest of all."""
    critic_loss: Literal["squared", "huber", "categorical"] = setting("squared", optional=True, fused=("squared",))
    """The critics' loss; categorical: cross-entropy of a distribution over value_bins values."""
    value_low: float = setting(
        -10.0, between=(-(10**9), 10**9), used_with=("critic_loss", "categorical"), extreme=-30.0, must_fit=True
    )
    """Lowest value of a categorical critic; the default suits --scale-rewards."""
    value_high: float = setting(
        10.0, between=(-(10**9), 10**9), used_with=("critic_loss", "categorical"), extreme=5.0, must_fit=True
    )
    """Highest value of a categorical critic."""
    value_bins: int = setting(
        101, between=(2, 10_000), used_with=("critic_loss", "categorical"), extreme=17, must_fit=True
    )
    """Number of values of a categorical critic, evenly spaced from lowest to highest."""
    weight_decay: float = setting(0.0, between=(0, 1), sweep=True, optional=True, fused=(0.0,), extreme=1.0)
    """Weight decay of actor, critics and encoder, decoupled from Adam as in AdamW."""
    max_grad_norm: float = setting(0.0, between=(0, 10**9), sweep=True, optional=True, fused=(0.0,), extreme=1e-6)
    """Largest norm of a seed's gradients: of its actor, of its critics together and of its encoder; 0: no limit."""
    lr_schedule: Literal["constant", "linear", "cosine"] = setting("constant", optional=True, fused=("constant",))
    """How both learning rates fall from their initial values to lr_final times these."""
    lr_final: float = setting(0.1, between=(0, 1), used_with=("lr_schedule", "linear", "cosine"), extreme=0.7)
    """Learning rates at the end of the schedule, as a share of the initial ones."""
    lr_updates: int = setting(0, between=(0, 10**12), used_with=("lr_schedule", "linear", "cosine"), extreme=50)
    """Updates until the schedule ends; the learning rates stay constant afterwards."""
    pre_activation_penalty: float = setting(
        0.0, between=(0, 10**6), sweep=True, optional=True, fused=(0.0,), extreme=1e3
    )
    """Weight of the mean square of the actor's outputs before their tanh, which keeps it from saturating."""
    encoder_channels: int = setting(32, between=(1, 1024), must_fit=True)
    """Channels of each convolution of the image encoder."""
    encoder_strides: tuple[int, ...] = setting((2, 2, 2, 1), between=(1, 4), must_fit=True)
    """Strides of the encoder's 3 x 3 convolutions, one for each."""
    encoder_features: int = setting(50, between=(1, 10_000), must_fit=True)
    """Features that the actor and the critics each compute from the encoder's output."""
    image_shift: int = setting(4, between=(0, 16), optional=True)
    """Images in batches are shifted at random by up to this many pixels; 0: not at all."""
    actor_network: str = setting("mlp", resume="moved", extreme="layer_norm", must_fit=True)
    """Kind of network of the actor: mlp, layer_norm, residual, or FILE.py:NAME for one of your own."""
    critic_network: str = setting("mlp", resume="moved", extreme="residual", must_fit=True)
    """Kind of network of each critic."""
    actor_activation: Activation = setting("relu", must_fit=True)
    """Activation of the actor's hidden layers."""
    critic_activation: Activation = setting("relu", must_fit=True)
    """Activation of the critics' hidden layers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.encoder_strides:
            raise UserError("td3.encoder_strides is empty; give one or more numbers from 1 to 4")
        if self.lr_schedule != "constant" and (not self.lr_updates or self.lr_final == 1):
            missing = "td3.lr_updates, the updates until it ends, and td3.lr_final below 1"
            raise UserError(f"td3.lr_schedule={self.lr_schedule} needs {missing}")
        if self.value_low >= self.value_high:
            raise UserError(f"td3.value_low={self.value_low:g} must be below td3.value_high={self.value_high:g}")
        # With fewer critics these would be the same as something simpler.
        of_aggregate = {"mean": 2, "min_of_random_2": 3, "truncated": self.drop_highest + 2}.get(self.aggregate, 1)
        for name, needed in (("aggregate", of_aggregate), ("actor_objective", 1 + (self.actor_objective != "first"))):
            if self.critics < needed:
                problem = f"td3.{name}={getattr(self, name)} needs at least {needed} critics"
                raise UserError(f"{problem}; td3.critics is {self.critics}")


class TD7Config(RuleConfig, prefix="td7."):
    """TD7. Defaults are the paper's."""

    encoder_lr: float = setting(3e-4, between=(0, 1), sweep=True, live=True, extreme=1e-2)
    """Adam's learning rate for the encoder of states and actions."""
    embedding: int = setting(256, between=(1, 65_536), extreme=12, must_fit=True)
    """Size of the embeddings of a state, and of a state with an action."""
    encoder_hidden: int = setting(256, between=(1, 65_536), extreme=12, must_fit=True)
    """Size of both hidden layers of each encoder."""
    priority_exponent: float = setting(0.4, between=(0, 10), extreme=0.9)
    """How much errors count in the choice of transitions (α of LAP); 0: they are chosen uniformly."""
    assess_episodes: int = setting(20, between=(1, 10**6), extreme=2)
    """Episodes that assess a policy before it may become the checkpoint, once assess_after updates are made."""
    assess_after: int = setting(750_000, between=(0, 10**12), extreme=20)
    """Updates of a seed in which a single episode assesses a policy."""


class ReplayConfig(Section, prefix="replay."):
    """The replay buffer."""

    capacity: int = setting(1_000_000, between=(1, 10**12), extreme=120)
    """Transitions kept per seed; the oldest are overwritten."""
    n_step: int = setting(1, between=(1, 100), sweep=True, extreme=3)
    """Rewards added up before the target bootstraps (n-step returns); TD3 has one."""
    sampling: Literal["uniform", "proportional", "lap"] = "uniform"
    """How transitions are chosen: uniformly, or by their errors: proportional (PER) or loss-adjusted (LAP)."""
    priority_exponent: float = setting(0.4, between=(0, 10), used_with=("sampling", "proportional", "lap"), extreme=0.9)
    """How much errors count in sampling (α); LAP has 0.4, PER has 0.6."""
    importance_exponent: float = setting(0.4, between=(0, 1), used_with=("sampling", "proportional"), extreme=0.9)
    """How far importance weights correct sampling=proportional (β); 1: fully."""
    importance_updates: int = setting(0, between=(0, 10**12), used_with=("sampling", "proportional"), extreme=100)
    """Updates until importance_exponent has risen to 1 in a straight line; 0: it stays as it is."""
    frames_on_disk: bool = setting(False, resume="changed", learning=False)
    """Keep images in a temporary file under run.root instead of memory, for replays larger than memory."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.priority_exponent == 0:
            raise UserError("replay.priority_exponent=0 samples uniformly; use replay.sampling=uniform instead")
        if self.importance_updates and self.importance_exponent == 1:
            raise UserError("replay.importance_updates is of no use with replay.importance_exponent=1")
