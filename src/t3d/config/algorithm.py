"""Settings of the algorithm and of the replay buffer. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from t3d.config.validation import check_range, check_used, convert
from t3d.errors import UserError

Activation = Literal["relu", "elu", "gelu", "silu", "tanh"]


@dataclass(frozen=True)
class TD3Config:
    """The algorithm. Defaults are those of the authors' later code."""

    gamma: float = 0.99
    """Discount factor (γ)."""
    tau: float = 0.005
    """How far the target networks move towards the online networks per update (τ)."""
    batch_size: int = 256
    """Batch size (N), for each seed."""
    actor_lr: float = 3e-4
    """Adam's learning rate for the actor."""
    critic_lr: float = 3e-4
    """Adam's learning rate for the critics, and for the encoder of images."""
    policy_delay: int = 2
    """Critic updates per update of the actor and the target networks (d)."""
    target_noise: float = 0.2
    """Standard deviation of the noise on target actions, as a fraction of half the action range (σ̃)."""
    target_noise_clip: float = 0.5
    """Clipping limit of that noise (c)."""
    critics: int = 2
    """Critics per seed; TD3 has two."""
    aggregate: Literal["min", "mean", "min_of_random_2", "truncated"] = "min"
    """How the values of the target critics become one; truncated: their mean without the highest."""
    drop_highest: int = 1
    """Critics whose values aggregate=truncated leaves out."""
    actor_objective: Literal["first", "mean", "min"] = "first"
    """Whose value the actor maximises: the first critic's, or the mean or smallest of all."""
    critic_loss: Literal["squared", "huber", "categorical"] = "squared"
    """The critics' loss; categorical: cross-entropy of a distribution over value_bins values."""
    value_low: float = -10.0
    """Lowest value of a categorical critic; the default suits --scale-rewards."""
    value_high: float = 10.0
    """Highest value of a categorical critic."""
    value_bins: int = 101
    """Number of values of a categorical critic, evenly spaced from lowest to highest."""
    weight_decay: float = 0.0
    """Weight decay of actor, critics and encoder, decoupled from Adam as in AdamW."""
    max_grad_norm: float = 0.0
    """Largest norm of a seed's gradient, of its actor, of its critics together and of its encoder; 0: no limit."""
    lr_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """How both learning rates fall from their initial values to lr_final of them."""
    lr_final: float = 0.1
    """Learning rates at the end of the schedule, as a share of the initial ones."""
    lr_updates: int = 0
    """Updates until the schedule ends; the learning rates stay constant afterwards."""
    pre_activation_penalty: float = 0.0
    """Weight of the mean square of the actor's outputs before their tanh, which keeps it from saturating."""
    actor_hidden: tuple[int, ...] = (256, 256)
    """Hidden layer sizes of the actor."""
    critic_hidden: tuple[int, ...] = (256, 256)
    """Hidden layer sizes of each critic."""
    encoder_channels: int = 32
    """Channels of each convolution of the encoder of images."""
    encoder_strides: tuple[int, ...] = (2, 2, 2, 1)
    """Strides of the encoder's 3 x 3 convolutions, one for each."""
    encoder_features: int = 50
    """Features that actor and critics each make of the encoder's output."""
    image_shift: int = 4
    """Images in batches are shifted at random by up to this many pixels; 0: not at all."""
    actor_network: str = "mlp"
    """Kind of network of the actor: mlp, layer_norm, residual, or FILE.py:NAME for one of your own."""
    critic_network: str = "mlp"
    """Kind of network of each critic."""
    actor_activation: Activation = "relu"
    """Activation of the actor's hidden layers."""
    critic_activation: Activation = "relu"
    """Activation of the critics' hidden layers."""

    def __post_init__(self) -> None:
        convert(self, "td3.")
        check_range(self, "td3.", gamma=(0, 1), tau=(0, 1), actor_lr=(0, 1), critic_lr=(0, 1))
        check_range(self, "td3.", batch_size=(1, 10**6), policy_delay=(1, 10**6), critics=(1, 1000))
        check_range(self, "td3.", target_noise=(0, 10), target_noise_clip=(0, 10), weight_decay=(0, 1))
        check_range(self, "td3.", max_grad_norm=(0, 10**9), lr_final=(0, 1), lr_updates=(0, 10**12))
        check_range(self, "td3.", pre_activation_penalty=(0, 10**6), drop_highest=(1, 999), value_bins=(2, 10_000))
        check_range(self, "td3.", value_low=(-(10**9), 10**9), value_high=(-(10**9), 10**9))
        check_used(self, "td3.", "aggregate", ("truncated",), "drop_highest")
        check_used(self, "td3.", "critic_loss", ("categorical",), "value_low", "value_high", "value_bins")
        check_used(self, "td3.", "lr_schedule", ("linear", "cosine"), "lr_final", "lr_updates")
        check_range(self, "td3.", encoder_channels=(1, 1024), encoder_features=(1, 10_000), image_shift=(0, 16))
        if not self.encoder_strides or not all(1 <= stride <= 4 for stride in self.encoder_strides):
            raise UserError(f"td3.encoder_strides={list(self.encoder_strides)}; give one or more numbers from 1 to 4")
        self._refuse_too_few_critics()
        self._refuse_idle_schedule()
        if self.value_low >= self.value_high:
            raise UserError(f"td3.value_low={self.value_low:g} must be below td3.value_high={self.value_high:g}")
        for name in ("actor_hidden", "critic_hidden"):
            for size in getattr(self, name):
                if not 1 <= size <= 65_536:
                    raise UserError(f"td3.{name} contains {size}; layer sizes must be between 1 and 65536")

    def _refuse_too_few_critics(self) -> None:
        """Refuses what would be the same as something simpler."""
        needed = {"mean": 2, "min_of_random_2": 3, "truncated": self.drop_highest + 2}.get(self.aggregate, 1)
        if self.critics < needed:
            without = f" to leave out {self.drop_highest}" if self.aggregate == "truncated" else ""
            needs = f"td3.aggregate={self.aggregate} needs at least {needed} critics{without}"
            raise UserError(f"{needs}; td3.critics is {self.critics}")
        if self.actor_objective != "first" and self.critics == 1:
            raise UserError(f"td3.actor_objective={self.actor_objective} needs at least 2 critics; td3.critics is 1")

    def _refuse_idle_schedule(self) -> None:
        if self.lr_schedule != "constant" and (not self.lr_updates or self.lr_final == 1):
            missing = "td3.lr_final below 1" if self.lr_updates else "td3.lr_updates, the updates until it ends"
            raise UserError(f"td3.lr_schedule={self.lr_schedule} needs {missing}")


@dataclass(frozen=True)
class ReplayConfig:
    """The replay buffer."""

    capacity: int = 1_000_000
    """Transitions kept per seed; the oldest are overwritten."""
    n_step: int = 1
    """Rewards added up before the target bootstraps (n-step returns); TD3 has one."""
    sampling: Literal["uniform", "proportional", "lap"] = "uniform"
    """How transitions are chosen: uniformly, or by their errors: proportional (PER) or loss-adjusted (LAP)."""
    priority_exponent: float = 0.4
    """How much errors count in sampling (α); LAP has 0.4, PER has 0.6."""
    importance_exponent: float = 0.4
    """How far importance weights correct sampling=proportional (β); 1: fully."""
    importance_updates: int = 0
    """Updates until importance_exponent has risen to 1 in a straight line; 0: it stays as it is."""
    frames_on_disk: bool = False
    """Keep images in a temporary file under run.root instead of memory, for replays larger than memory."""

    def __post_init__(self) -> None:
        convert(self, "replay.")
        check_range(self, "replay.", capacity=(1, 10**12), n_step=(1, 100), priority_exponent=(0, 10))
        check_range(self, "replay.", importance_exponent=(0, 1), importance_updates=(0, 10**12))
        check_used(self, "replay.", "sampling", ("proportional", "lap"), "priority_exponent")
        check_used(self, "replay.", "sampling", ("proportional",), "importance_exponent", "importance_updates")
        if self.priority_exponent == 0:
            raise UserError("replay.priority_exponent=0 samples uniformly; use replay.sampling=uniform instead")
        if self.importance_updates and self.importance_exponent == 1:
            raise UserError("replay.importance_updates is of no use with replay.importance_exponent=1")
