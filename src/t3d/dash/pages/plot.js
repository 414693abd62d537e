// Curves as plotly draws them: traces, layout, colours of the page.

import { el, shortened } from "./dom.js";

export const view = { axis: "steps", smoothing: 0, seeds: false, range: null, runs: "" }; // of all charts; a range of null: everything
const COLOURS = 8;
const BAND = 0.2; // opacity of intervals
const HEIGHT = 230; // of a chart, of which a legend of one row is a part
const [ROW, KEY, LETTER] = [29, 47, 6]; // of a legend, in pixels: height, width of an entry without its words, and of a letter
const [WORD, ROOM] = [14, 0.2]; // of the word at an alarm: height in pixels, and the share of a chart's width that it needs
let loading = null;

// Plotly is four megabytes, so only pages with charts load it.
export function plotly() {
  loading ??= new Promise((done, failed) => {
    const script = el("script", { src: "/static/plotly.min.js", onload: () => done(window.Plotly), onerror: () => {
      loading = null;
      script.remove();
      failed(new Error("The charts could not be loaded."));
    } });
    document.head.append(script);
  });
  return loading;
}

export function colour(place) {
  return style(`--curve-${place % COLOURS}`);
}

function style(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// Plotly reads some HTML in names; what files say stays text.
function asText(name) {
  return name.replaceAll("&", "&amp;").replaceAll("<", "&lt;");
}

// A curve is { name, colour, line }: the mean with its interval, or each seed; a seed that diverged is dotted. width: of the chart.
export function traces(curves, width) {
  return curves.flatMap(({ name: said, colour, line }) => {
    const name = asText(inLegend(said, width));
    const shown = line.members.filter((one) => view.seeds || !line.mean || one.diverged);
    const drawn = shown.flatMap((one, place) => lineTraces(one, seedName(name, one), colour, {
      dash: one.diverged ? "dot" : "solid", width: 1.2, group: said, legend: !line.mean && place === 0 }));
    if (!line.mean || view.seeds && line.members.length > 1) return drawn;
    return [...bandTraces(line.mean, colour, said), ...drawn, ...lineTraces(line.mean, name, colour, { dash: "solid", width: 2, group: said, legend: true })];
  });
}

function seedName(name, member) {
  return [name, member.member && asText(member.member), member.diverged ? "diverged" : null].filter(Boolean).join(" · ");
}

function lineTraces(curve, name, colour, { dash, width, group, legend }) {
  const look = { type: "scatter", mode: curve.y.length === 1 ? "markers" : "lines", x: curve[view.axis], legendgroup: group };
  const line = { color: colour, width, dash };
  if (view.smoothing === 0) return [{ ...look, y: curve.y, name, line, showlegend: legend }];
  return [
    { ...look, y: curve.y, line: { ...line, width: 1 }, opacity: 0.3, hoverinfo: "skip", showlegend: false },
    { ...look, y: smoothed(curve.y, view.smoothing), name, line, showlegend: legend },
  ];
}

function bandTraces(mean, colour, group) {
  if (!mean.low || mean.low.length < 2) return [];
  const kept = mean.low.map((_, place) => place).filter((place) => mean.low[place] !== null && mean.high[place] !== null);
  const back = [...kept].reverse();
  const x = mean[view.axis];
  return [{ type: "scatter", mode: "lines", fill: "toself", fillcolor: colour, opacity: BAND, line: { width: 0 },
    x: [...kept, ...back].map((place) => x[place]), y: [...kept.map((place) => mean.high[place]), ...back.map((place) => mean.low[place])],
    hoverinfo: "skip", showlegend: false, legendgroup: group }];
}

// The exponential average that TensorBoard draws: without its bias to 0 at the start.
export function smoothed(values, weight) {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

// The newest counts of equal bins between -1 and 1, or between the low and the high that came with them.
export function bars(series) {
  const newest = (one) => one?.lines[0]?.members[0].y.at(-1);
  const edge = (name) => newest(series.find((one) => one.metric.endsWith(name)));
  const counts = series.filter((one) => /_counts\.\d+$/.test(one.metric)).map(newest).filter((count) => count !== undefined);
  const [low, high] = [edge(".low") ?? -1, edge(".high") ?? 1];
  const x = counts.map((_, place) => low + ((place + 0.5) / counts.length) * (high - low));
  return [{ type: "bar", x, y: counts, marker: { color: colour(0) }, showlegend: false, hovertemplate: "%{x:.3~g}: %{y}<extra></extra>" }];
}

// A name as a legend has room for it.
function inLegend(name, width) {
  return shortened(name, Math.max(8, Math.floor((width - 2 * KEY) / LETTER)));
}

// How many rows plotly's legend has: names of runs can be long, and many.
function legendRows(names, width) {
  let [rows, used] = [1, 0];
  for (const name of names) {
    const wanted = KEY + LETTER * name.length;
    if (used > 0 && used + wanted > width) [rows, used] = [rows + 1, 0];
    used += wanted;
  }
  return rows;
}

// A dotted line where an alarm sounded. The first one on the screen has a word, in a row of its own above the axes: on the
// left of the line if there is room, because it may be at the right edge.
function marks(steps, [first, last]) {
  const named = Math.min(...steps.filter((step) => step >= first));
  const label = { text: "alarm", textposition: "end", textangle: 0, yanchor: "bottom", font: { color: style("--bad"), size: 11 },
    xanchor: named - first > ROOM * (last - first) ? "right" : "left" };
  return steps.map((step) => ({ type: "line", x0: step, x1: step, yref: "paper", y0: 0, y1: 1, layer: "above",
    line: { color: style("--bad"), width: 1, dash: "dot" }, label: step === named ? label : {} }));
}

function stepsOf(curves) {
  const ends = curves.flatMap(({ line }) => line.members.flatMap(({ steps }) => [steps[0], steps.at(-1)]));
  return [Math.min(...ends), Math.max(...ends)];
}

// With more than one curve there is a legend. width: of the chart, in pixels. alarms: steps to mark.
export function layout({ isLog, isShare, xTitle, curves, width, isBars, alarms }) {
  const names = curves.map((one) => inLegend(one.name, width));
  const axis = { gridcolor: style("--grid"), zerolinecolor: style("--grid"), automargin: true, tickfont: { size: 11 } };
  const shapes = view.axis === "steps" && !isBars ? marks(alarms, view.range ?? stepsOf(curves)) : [];
  const words = shapes.length ? WORD : 0;
  const text = xTitle ?? (view.axis === "steps" ? "steps" : "seconds of training");
  return {
    height: HEIGHT + words + ROW * (legendRows(names, width - KEY) - 1), margin: { l: 8, r: 12, t: 8 + words, b: 8 }, bargap: 0.05,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: style("--text"), size: 12, family: style("--font") },
    hovermode: "x unified", hoverlabel: { bgcolor: style("--card"), bordercolor: style("--line"), font: { color: style("--text"), size: 12 } },
    shapes,
    showlegend: names.length > 1, legend: { orientation: "h", y: 1.02 + words / HEIGHT, yanchor: "bottom", x: 0, font: { size: 11 } },
    dragmode: window.matchMedia("(pointer: coarse)").matches || isBars ? false : "zoom",
    xaxis: { ...axis, title: { text, font: { size: 11 }, standoff: 4 }, zeroline: false,
      ...(view.range && !isBars ? { range: view.range, autorange: false } : { autorange: true }) },
    yaxis: { ...axis, type: isLog ? "log" : "linear", fixedrange: true, rangemode: isShare ? "tozero" : "normal", tickformat: ".6~g", nticks: 6 },
  };
}

export const CONFIG = {
  responsive: true, displaylogo: false, doubleClick: "autosize", scrollZoom: false, displayModeBar: false,
};
