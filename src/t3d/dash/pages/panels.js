// Which curves a run page draws, under which headings, and what healthy ones look like. docs/metrics.md says more.
// They are in panels.json because `t3d report` draws the same. "alarms" are the
// kinds of alarms that a chart shows the reason of, "entries" what the entries of a metric are called;
// the y axis of a "share" starts at 0; a panel "of_info" is one for each metric of info.

export const PANELS = await (await fetch("/static/panels.json")).json();

export function panelsOf(run) {
  const asked = (run.settings["env.metrics"]?.value ?? []).map((word) => word.slice(0, word.lastIndexOf(":")));
  const firstSet = Object.keys(run.settings).find((key) => key.startsWith("eval.sets."))?.split(".")[2];
  return PANELS.map((panel) => ({ ...panel, firstSet })).flatMap((panel) => (panel.of_info
    ? asked.map((name) => ({ ...panel, title: `${panel.title}: ${name}`, metrics: { [`metrics.${name}`]: name } })) : [panel]));
}

export function isPartOf(metric, asked) {
  return metric === asked || metric.startsWith(`${asked}.`);
}

export function isReported(panel, reported) {
  return Object.keys(panel.metrics).some((asked) => reported.some((metric) => isPartOf(metric, asked)));
}
