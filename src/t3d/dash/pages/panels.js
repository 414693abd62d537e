// Which curves a run page draws, under which headings, and what healthy ones look like. docs/metrics.md says more.

export const PANELS = [
  { group: "Return", title: "Return of evaluations", metrics: { return: "mean return" },
    note: "Without exploration noise; with one seed the band is one standard deviation over its episodes. Rises, then levels off. Flat at its first value: nothing is learned." },
  { group: "Return", title: "Return of training episodes", metrics: { total_reward: "return" },
    note: "With exploration noise, so a little below the evaluations." },
  { group: "Return", title: "Length of training episodes", metrics: { length: "steps" },
    note: "Grows where surviving is the task. Always at the time limit: the environment never terminates, which may be right." },

  { group: "Values", title: "Q against real return", metrics: { q_predicted: "critics' value", q_return: "return that followed" },
    note: "Both follow each other. The value far above the return and growing: the critics overestimate, and the actor follows them into their errors." },
  { group: "Values", title: "Bias of the critics", metrics: { q_bias: "predicted minus returned" },
    note: "Small compared with the return, often a little below 0. Far above 0 and growing: overestimation." },
  { group: "Values", title: "Values and targets", metrics: { q_mean: "Q (stored actions)", y_mean: "target y" },
    note: "Level off at the scale of discounted returns. Beyond the largest reward / (1 − γ): values diverge." },
  { group: "Values", title: "Disagreement of the critics", metrics: { disagreement: "std over critics" },
    note: "A few per cent of Q. Growing faster than Q: they are asked about states they have seen too little of." },

  { group: "Losses", title: "Critic loss", metrics: { critic_loss: "critic loss" },
    note: "Rises with the scale of the values; single spikes are normal. Without bound together with Q: divergence." },
  { group: "Losses", title: "Actor loss", metrics: { actor_loss: "actor loss" },
    note: "A little below −Q: the critic rates the actor's own actions above the stored ones." },
  { group: "Losses", title: "TD error", metrics: { td_abs_mean: "mean |q − y|" },
    note: "Small compared with Q and growing more slowly. As large as Q after many updates: rewards too large or too noisy." },
  { group: "Losses", title: "Other losses", metrics: { other_losses: "" }, note: "Of an algorithm of your own." },

  { group: "Speed", title: "Speed", metrics: { steps_per_second: "steps per second" },
    note: "Of one seed, evaluations included. High during the random steps, then steady." },
  { group: "Speed", title: "Share of the time spent acting", metrics: { acting_share: "acting, or waiting for actors" },
    note: "Below a half. Near 1: the environment is slower than the learner." },
  { group: "Speed", title: "Who waits", metrics: { actors_waited: "actors", learner_waited: "learner" },
    note: "Share of the time that actor processes and the learner waited for each other." },
  { group: "Speed", title: "Age of the acting policy", metrics: { age_median: "median", age_p99: "99 %" },
    note: "Updates that the learner was ahead when a transition arrived." },
  { group: "Speed", title: "Updates per step", metrics: { ratio: "achieved" }, note: "After the random steps." },

  { group: "Diagnostics", title: "Saturated actions", metrics: { saturated: "beyond 0.99 of the range", stuck_actions: "at one end in every state" },
    note: "Near 1 soon after the random steps: tanh passes almost no gradient, and the actor hardly learns." },
  { group: "Diagnostics", title: "Dead units", metrics: { dead_units: "" },
    note: "Share of hidden units that pass nothing. Below a third; above a half and growing: the network loses capacity." },
  { group: "Diagnostics", title: "Norms of gradients", metrics: { gradient_norms: "" },
    note: "Level off. Jumps by orders of magnitude: rare, very large rewards or observations. The actor's near 0: it no longer learns." },
  { group: "Diagnostics", title: "Norms of weights", metrics: { weight_norms: "" },
    note: "Grow ever more slowly. Steadily or faster: learning is unstable." },
  { group: "Diagnostics", title: "Quantiles of the TD errors", metrics: { td_quantiles: "" },
    note: "Around 0 and narrow compared with Q. The median far from 0: the critics cannot follow." },
  { group: "Diagnostics", title: "Age of sampled transitions", metrics: { sampled_age: "" },
    note: "In steps. With uniform sampling the median is half of what the replay holds." },
  { group: "Diagnostics", title: "Largest reward so far", metrics: { largest_reward: "without its sign" },
    note: "Levels off. Beyond 1,000: scale the rewards." },
  { group: "Diagnostics", title: "Actions in the newest batch", metrics: { action_counts: "" }, bars: "action, −1 to 1",
    note: "Stored actions, noise included. All in the outer bins: saturated. All in one: no exploration." },
  { group: "Diagnostics", title: "Rewards in the newest batch", metrics: { reward_counts: "", reward_range: "" }, bars: "reward, lowest to highest",
    note: "All in one bin: almost no transition says anything about what is good." },
];

export const GROUPS = [...new Set(PANELS.map((panel) => panel.group))];

export function isPartOf(metric, asked) {
  return metric === asked || metric.startsWith(`${asked}.`);
}
