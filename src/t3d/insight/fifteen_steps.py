"""The text of the fifteen steps: what happens in each with a run's settings, why, and what would break without it.

With the default settings what happens is what docs/algorithm.md says; a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple

from t3d.config import Config, TD3Config


class Text(NamedTuple):
    """What is said of a step, whatever its numbers are."""

    title: str
    formula: str  # in STEPS with {words} that depend on the settings
    why: str
    without: str
    settings: dict[str, str] = {}  # that it is about, with their letters in the formula  # noqa: RUF012 (never changed)
    values: dict[str, str] = {}  # of types.UpdateTrace, that it makes, with their symbols  # noqa: RUF012


LETTERS = (
    "State s, action a, reward r, next state s'; the actor π_φ and the critics Q_θi, where ' marks their targets. "
    "Actions are in [-1, 1]; shapes leave out the seeds; examples are the first transition of the batch."
)
AGGREGATE_IN_WORDS = {  # step 8, and what it is called in step 9
    "min": ("keep the minimum", "min Q'"),
    "mean": ("keep the mean over the critics", "mean Q'"),
    "min_of_random_2": ("keep the smaller value of two critics, chosen anew in every update", "min of two Q'"),
    "truncated": ("keep the mean over the critics without the {dropped} highest", "truncated mean Q'"),
}
LOSS = {
    "squared": "(Q_θi(s, a) − y)²",
    "huber": "huber(Q_θi(s, a) − y)",
    "categorical": "cross-entropy(p_θi(s, a), y between its two nearest values)",
}
OBJECTIVE = {
    "first": "Q_θ1(s, π_φ(s))",
    "mean": "mean_i Q_θi(s, π_φ(s))",
    "min": "min_i Q_θi(s, π_φ(s))",
}
STEPS = (
    Text(
        "Replay memory",
        "replay memory of fixed size: append until full, then overwrite the oldest",
        "Every transition is learned from many times, and a sample of old ones is hardly correlated.",
        "Learning from the newest steps alone, the critics would forget states that the policy no longer visits.",
        {"replay.capacity": ""},
    ),
    Text(
        "Actor and its target",
        "the actor π_φ{encoder}, and π_φ' as a copy",
        "The actor is the policy; its target follows slowly, so that the goal of learning does not jump.",
        "With one network for both, every change of the policy would move the critics' goal at once.",
        {"td3.actor_hidden": ""},
    ),
    Text(
        "Critics and their targets",
        "the critics Q_θi, initialised independently, and Q_θi' as copies",
        "Critics that start differently make different errors, which step 8 uses; targets keep the goal nearly still.",
        "Critics that start alike stay alike forever, and are no better than one.",
        {"td3.critics": "", "td3.critic_hidden": ""},
    ),
    Text(
        "A batch",
        "a batch of N transitions (s, a, {reward}, s', terminated){batch}",
        "The mean over a batch evens out the chance in single transitions, and costs little more than one.",
        "A single transition would pull the critics to and fro, and successive ones would pull all in one direction.",
        {"td3.batch_size": "N"},
    ),
    Text(
        "The next action",
        "a' = π_φ'(s')",
        "The value of the next state is that of the action the policy would take there.",
        "The action that was really taken next is an older policy's, so the critics would judge a policy that is gone.",
        values={"pi2": "π_φ'(s')"},
    ),
    Text(
        "Target policy smoothing",
        "{smoothing}",
        "Similar actions should have similar values: with noise, y is a mean over the neighbourhood of a'.",
        "The actor would climb narrow peaks that errors of the critics make, and the targets would believe in them.",
        {"td3.target_noise": "σ̃", "td3.target_noise_clip": "c"},
        {"eps": "noise", "a2": "a'"},
    ),
    Text(
        "The target critics' values",
        "Q_θi'(s', a')",
        "What follows is judged by copies that move slowly, so the goal stays nearly still between updates.",
        "Judged by the online critics, every update would move its own goal, and values can run away.",
        values={"q2": "Q_θi'"},
    ),
    Text(
        "One value of several",
        "{aggregate}",
        "{why}",
        "Errors upwards would pass from target to target and grow: t3d explain --claim overestimation shows it.",
        {"td3.aggregate": ""},
        {"v2": "{kept}"},
    ),
    Text(
        "The target",
        "y = r + {gamma} · (1 − terminated) · {kept}, without gradient",
        "The value of an action is its reward plus the discounted value of what follows; only termination ends the "
        "sum, a time limit does not.",
        "If a time limit counted as termination, the states before it would look worthless; with a gradient through y, "
        "the goal would move towards the prediction.",
        {"td3.gamma": "γ"},
        {"y": "y"},
    ),
    Text(
        "The critics' values",
        "Q_θi(s, a)",
        "What the critics say now of the action that was taken; it should come closer to y.",
        "With π_φ(s) instead of the action that was taken, its reward would be credited to another action.",
        values={"q": "Q_θi"},
    ),
    Text(
        "The critics' loss",
        "critic loss: Σ_i mean {loss}",
        "All critics are drawn to one target; their losses are added, so each learns as if it were alone.",
        "With a target of its own, each critic would believe its own errors again, and step 8 would be in vain.",
        {"td3.critic_loss": ""},
        {"td": "Q − y", "loss": "loss", "weight": ""},
    ),
    Text(
        "The critics learn",
        "backpropagate, one Adam step for the critics{and_encoder}{extras}",
        "Adam divides each weight's step by the size of its recent gradients, so that one learning rate suits all.",
        "Plain gradient steps would be tiny where gradients are small and far too large where they are not.",
        {"td3.critic_lr": "learning rate"},
    ),
    Text(
        "The actor learns",
        "{when}: the actor ascends {maximised}{penalised}{extras}",
        "The critic's slope says how an action should change to be worth more, and backpropagation carries that to φ; "
        "with a delay the critics learn first what the policy is worth.",
        "An actor as fast as the critics follows values that are still wrong: t3d explain --claim delay compares.",
        {"td3.actor_lr": "learning rate", "td3.policy_delay": "d"},
        {"pi": "π_φ(s)", "q_pi": "{maximised}", "actor_loss": ""},
    ),
    Text(
        "The actor's target follows",
        "{when}: φ' ← τφ + (1 − τ)φ'",
        "The target is a running mean of the actor, so single bad steps hardly reach it.",
        "Without a move the targets would judge the untrained policy forever; with a full copy they would jump.",
        {"td3.policy_delay": "", "td3.tau": "τ"},
    ),
    Text(
        "The critics' targets follow",
        "{when}: θ_i' ← τθ_i + (1 − τ)θ_i'",
        "What the critics have learned reaches the targets slowly, so that the next updates have a steady goal.",
        "Without a move nothing would be learned beyond one step; with a full copy errors would feed back at once.",
        {"td3.policy_delay": "", "td3.tau": "τ"},
    ),
)


def fifteen_texts(cfg: Config, td3: TD3Config, *, images: bool = False) -> list[Text]:
    """Returns the text of steps 1 to 15 for a member's settings."""
    replay = cfg.replay
    batch = [
        ", chosen by their errors" if replay.sampling != "uniform" else "",
        ", s and s' normalised" if cfg.normalise_observations else "",
        ", r divided by the scale of returns" if cfg.scale_rewards else "",
        f", images shifted by up to {td3.image_shift} pixels and encoded" if images else "",
    ]
    extras = [
        f", gradient limited to a norm of {td3.max_grad_norm:g}" if td3.max_grad_norm else "",
        f", weight decay {td3.weight_decay:g}" if td3.weight_decay else "",
        f", {td3.lr_schedule} learning-rate schedule" if td3.lr_schedule != "constant" else "",
    ]
    smoothing = "no noise on a' in this run; clamp a' to the bounds"
    if td3.target_noise and td3.target_noise_clip:
        smoothing = "a' += clip(noise of scale σ̃, −c, c), then clamp a' to the action bounds"
    aggregate, kept = AGGREGATE_IN_WORDS[td3.aggregate]
    why = "The actor seeks out values that are too high by mistake; the low ones of several estimates seldom are."
    if td3.aggregate == "mean":
        why = "A mean evens out errors that the critics do not share, but is not as cautious as the paper's minimum."
    if td3.critics == 1:
        aggregate, kept = "one critic in this run: its value is kept", "Q'"
        why = "With one critic nothing guards against values that are too high by mistake, which the actor seeks out."
    words = {
        "encoder": " behind an encoder of images, which has no target" if images else "",
        "and_encoder": " and the encoder" if images else "",
        "reward": "r" if replay.n_step == 1 else f"r summed over up to {replay.n_step} steps",
        "batch": "".join(batch),
        "smoothing": smoothing,
        "aggregate": aggregate.format(dropped=td3.drop_highest),
        "why": why,
        "gamma": "γ" if replay.n_step == 1 else "γⁿ",
        "kept": kept,
        "loss": ("w · " if replay.sampling == "proportional" else "") + LOSS[td3.critic_loss],
        "maximised": OBJECTIVE[td3.actor_objective],
        "penalised": " minus a penalty on outputs before tanh" if td3.pre_activation_penalty else "",
        "extras": "".join(extras),
        "when": "every update" if td3.policy_delay == 1 else "every d-th update",
    }
    return [
        text._replace(
            formula=text.formula.format(**words),
            why=text.why.format(**words),
            values={name: symbol.format(**words) for name, symbol in text.values.items()},
        )
        for text in STEPS
    ]
