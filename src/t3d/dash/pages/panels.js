// Which curves a run page draws, under which headings, and what healthy ones look like. docs/metrics.md says more.
// They are in panels.json because `t3d report` draws the same. "alarms" are the
// kinds of alarms that a chart shows the reason of, "entries" what the entries of a metric are called;
// the y axis of a "share" starts at 0.

export const PANELS = await (await fetch("/static/panels.json")).json();

export function isPartOf(metric, asked) {
  return metric === asked || metric.startsWith(`${asked}.`);
}

export function isReported(panel, reported) {
  return Object.keys(panel.metrics).some((asked) => reported.some((metric) => isPartOf(metric, asked)));
}
