"""The steps of TD7, as algo/td7.py labels them: what happens in each, why, and what would break without it."""

from __future__ import annotations

from t3d.insight.fifteen_steps import Text

ENCODER = {"td7.encoder_lr": "learning rate"}
STEPS = (
    Text(
        "Replay memory",
        "replay memory of fixed size; new transitions get the highest priority that there is",
        "Every transition is learned from many times, and new ones soon.",
        "Learning from the newest steps alone, the critics would forget states that the policy no longer visits.",
        {"replay.capacity": ""},
    ),
    Text(
        "Encoder and actor",
        "z_s = f(s) and z_sa = g(z_s, a) of size d; the actor π(s, z_s); copies of all that are fixed, and older ones",
        "Embeddings learned from the environment's own dynamics are a richer input than raw states.",
        "With one generation of the encoder, what actor and critics see would change in every update.",
        {"td7.embedding": "d", "td7.actor_hidden": ""},
    ),
    Text(
        "Critics and their targets",
        "critics Q_i(s, a, z_sa, z_s) with different initialisations, and Q_i' as copies",
        "Of two critics that err independently, the smaller value is seldom far too high.",
        "One critic's overestimates would feed back into its own targets.",
        {"td7.critics": "critics"},
    ),
    Text(
        "Batch, by errors",
        "N transitions with probability ∝ max(|δ|, 1)^α, where δ is the largest error when last drawn (LAP)",
        "Transitions that the critics predict badly teach most; small errors are all treated alike.",
        "With α = 0 all are equally likely.",
        {"td7.batch_size": "N", "td7.priority_exponent": "α"},
    ),
    Text(
        "Embeddings",
        "z_s = f(s), z_sa = g(z_s, a), and f(s') without a gradient, all by the encoder that learns",
        "z_sa shall say where the action leads; f's outputs keep a mean size of one, so that it cannot shrink to zero.",
        "With a gradient through f(s') both sides could agree on a constant.",
        values={"zs": "z_s", "zsa": "z_sa", "zs2": "f(s')"},
    ),
    Text(
        "The encoder learns",
        "minimise (g(f(s), a) − f(s'))², one Adam step for f and g",
        "It learns from the dynamics alone, not from values that are still wrong.",
        "Without it the embeddings would be those of random networks.",
        ENCODER,
        {"encoder_loss": "loss"},
    ),
    Text(
        "Target action",
        "a' = π'(s', z_s') + clip(noise of scale σ̃, −c, c), then clamp a' to the action bounds",
        "Similar actions should have similar values, so the target is smoothed over them.",
        "The actor would climb narrow peaks of the critics that are only mistakes.",
        {"td7.target_noise": "σ̃", "td7.target_noise_clip": "c"},
        {"a2": "a'"},
    ),
    Text(
        "Target critics",
        "Q_i'(s', a', z_sa', z_s') with the oldest generation of the encoder",
        "Targets see what they saw when they were copied.",
        "A newer encoder would hand them inputs that they were never trained on.",
        values={"q2": "Q_i'"},
    ),
    Text(
        "The smallest, inside limits",
        "v = clip(min_i Q_i', lowest, highest target until the last copy)",
        "Critics that see unknown actions beside embeddings extrapolate wildly; no target can leave what was seen.",
        "One absurd value could be copied into the next targets and grow.",
        values={"v2": "v"},
    ),
    Text(
        "Target",
        "y = r + γ · (1 − terminated) · v",
        "One target for all critics; a time limit does not stop the bootstrap, termination does.",
        "With a target of its own each critic would keep its own mistakes.",
        {"td7.gamma": "γ"},
        {"y": "y"},
    ),
    Text(
        "Values of the actions taken",
        "Q_i(s, a, z_sa, z_s) with the fixed encoder",
        "The critics learn on inputs that stay the same for 250 updates.",
        "Their inputs would move while they learn what they mean.",
        values={"q": "Q_i"},
    ),
    Text(
        "Loss",
        "δ²/2 where |δ| < 1, |δ| beyond; mean over the batch, summed over the critics",
        "Together with drawing by errors, its gradient is as if all were drawn equally often with squared errors.",
        "Squared errors of transitions that are drawn by their errors would count twice.",
        values={"td": "δ_i", "loss": "loss_i"},
    ),
    Text(
        "The critics learn",
        "backpropagate, one Adam step for the critics; the largest |δ| of each transition is its new priority",
        "Adam divides each weight's step by the size of its recent gradients, so that one learning rate suits all.",
        "Without new priorities the first errors would be drawn forever.",
        {"td7.critic_lr": "learning rate"},
    ),
    Text(
        "The actor learns",
        "every d-th update: the actor ascends mean_i Q_i(s, π(s, z_s)), also through g",
        "The critics' slope says how an action should change to be worth more.",
        "An actor as fast as the critics follows values that are still wrong.",
        {"td7.actor_lr": "learning rate", "td7.policy_delay": "d"},
        {"pi": "π(s)", "q_pi": "mean_i Q_i", "actor_loss": "loss"},
    ),
    Text(
        "Copies",
        "every 250 updates: targets ← online, oldest encoder ← fixed ← the one that learns; the limits are renewed",
        "Between two copies the goal of learning stands still.",
        "Targets that follow in every update would see embeddings that no longer fit them.",
    ),
    Text(
        "Assessment",
        "when an episode ends: a policy whose lowest return is the best so far becomes the checkpoint; then it learns",
        "The policy that is evaluated and shipped is one that has done well for whole episodes.",
        "An update can spoil a policy from one moment to the next, and evaluations would show that.",
        {"td7.assess_episodes": "", "td7.assess_after": ""},
    ),
)
LETTERS = (
    "State s, action a, reward r, next state s'; the actor π, the critics Q_i, the encoder f and g, where ' marks "
    "targets. Actions are in [-1, 1]; shapes leave out the seeds; examples are the first transition of the batch."
)
