// The curves of a run, and of a comparison: a toolbar for all charts, and only what is on the screen is asked for.

import { oneAtATime } from "./api.js";
import { Chart } from "./chart.js";
import { choice, el } from "./dom.js";
import { isReported } from "./panels.js";
import { view } from "./plot.js";

const MARGIN = "600px"; // charts this far below the screen are drawn too

// Draws panels of runs, whose names tell when a range that was zoomed into belongs to others. ask(parameters) gets series
// from the server. Returns its element, update(names of reported metrics, alarms to mark) and goTo(title of a chart).
export function curves(names, panels, ask, failed) {
  const runs = JSON.stringify(names);
  if (view.runs !== runs) Object.assign(view, { runs, range: null });
  const visible = new Set();
  const charts = panels.map((panel) => new Chart(panel, zoom));
  const groups = [...new Set(panels.map((panel) => panel.group))].map((group) => el("section", { class: "group" },
    group ? el("h2", {}, group) : null,
    el("div", { class: "charts" }, charts.filter((one) => one.panel.group === group).map((one) => one.element))));
  const empty = el("p", { class: "quiet" }, "Nothing has been reported yet.");
  const reading = el("p", { class: "quiet", role: "status", hidden: true }, "This log is long and still being read: curves get finer.");
  const { element: bar, showRange } = toolbar(zoom, redraw);
  charts.forEach((chart) => { chart.element.hidden = true; });

  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const chart = charts.find((one) => one.element === entry.target);
      if (entry.isIntersecting) visible.add(chart);
      else visible.delete(chart);
    }
    loadNow();
  }, { rootMargin: MARGIN });
  charts.forEach((chart) => observer.observe(chart.element));

  const load = oneAtATime(async () => {
    const shown = [...visible];
    if (shown.length === 0) return;
    const [from, to] = view.axis === "steps" && view.range ? view.range : [null, null];
    const answer = await ask({ metric: [...new Set(shown.flatMap((chart) => chart.metrics))], points: 400,
      from: from && Math.max(0, from), to });
    for (const chart of shown) await chart.draw(answer.series);
    reading.hidden = answer.complete;
    if (!answer.complete) setTimeout(loadNow, 200);
  });

  function loadNow() {
    load().catch(failed);
  }

  function zoom(range) {
    view.range = range;
    showRange();
    loadNow();
  }

  function redraw() {
    visible.forEach((chart) => chart.redraw());
  }

  window.matchMedia("(prefers-color-scheme: dark)").onchange = redraw;

  function update(reported, alarms = []) {
    for (const chart of charts) {
      chart.mark(alarms);
      chart.element.hidden = !isReported(chart.panel, reported);
    }
    groups.forEach(arrange);
    empty.hidden = charts.some((chart) => !chart.element.hidden);
    return load();
  }

  function goTo(title) {
    const chart = charts.find((one) => one.panel.title === title && !one.element.hidden);
    if (!chart) return;
    if (view.range) zoom(null);
    chart.element.scrollIntoView({ block: "center" });
    chart.element.focus({ preventScroll: true });
  }

  return { element: el("div", {}, bar, empty, reading, groups), update, goTo };
}

// Shares out the charts of a group among its rows so that there is no hole: where three stand in a row, 4 as 2 and 2, 5 as 3
// and 2, with "half" for those in rows of two; where two do, the last of an odd number has a row for itself.
function arrange(group) {
  const shown = [...group.querySelectorAll(".chart:not([hidden])")];
  if (group.dataset.shown === String(shown.length)) return;
  const inThrees = 3 * Math.max(0, shown.length - 2 * Math.ceil(shown.length / 3));
  shown.forEach((chart, place) => {
    chart.classList.toggle("half", place >= inThrees && shown.length > 1);
    chart.classList.toggle("alone", shown.length === 1);
    chart.classList.toggle("last", place === shown.length - 1 && shown.length % 2 === 1);
  });
  group.dataset.shown = shown.length;
  group.hidden = shown.length === 0;
  window.dispatchEvent(new Event("resize")); // to which plotly listens
}

function toolbar(zoom, redraw) {
  const axis = choice("x axis", [["steps", "steps"], ["seconds", "training time"]], view.axis, (value) => {
    view.axis = value;
    zoom(null);
  });
  const seeds = choice("Seeds", [["", "mean and 95 % interval"], ["1", "each seed"]], view.seeds ? "1" : "", (value) => {
    view.seeds = value === "1";
    redraw();
  });
  const smoothing = el("input", { type: "range", min: "0", max: "0.99", step: "0.01", value: String(view.smoothing), oninput: () => {
    view.smoothing = Number(smoothing.value);
    redraw();
  } });
  const [from, to] = ["first", "last"].map((which) => el("input", { type: "number", min: "0", class: "step", placeholder: which, onchange: () => {
    if (from.value === "" && to.value === "") zoom(null);
    else if (from.value !== "" && to.value !== "" && Number(from.value) < Number(to.value)) zoom([Number(from.value), Number(to.value)]);
  } }));
  const whole = el("button", { type: "button", onclick: () => zoom(null) }, "Show all");
  const showRange = () => {
    [from.value, to.value] = (view.range ?? ["", ""]).map((value) => (value === "" ? "" : String(Math.round(value))));
    whole.disabled = view.range === null;
  };
  showRange();
  const element = el("div", { class: "bar tools", role: "group", "aria-label": "All charts" },
    axis, seeds, el("label", { class: "field" }, el("span", {}, "Smoothing"), smoothing),
    el("label", { class: "field" }, el("span", {}, "From"), from), el("label", { class: "field" }, el("span", {}, "to"), to), whole);
  return { element, showRange };
}
