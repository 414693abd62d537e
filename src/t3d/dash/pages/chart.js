// One chart with its heading: the newest value in words, the curves, and what healthy ones look like.

import { count, duration, el, figure, shortened } from "./dom.js";
import { isPartOf } from "./panels.js";
import { bars, colour, CONFIG, layout, plotly, traces, view } from "./plot.js";

export class Chart {
  // panel: as in panels.js. zoomed: called with the range on the x axis that was dragged over, null for everything.
  constructor(panel, zoomed) {
    this.panel = panel;
    this.zoomed = zoomed;
    this.isLog = false;
    this.series = [];
    this.alarms = []; // the steps of alarms that this chart shows the reason of
    this.newest = el("p", { class: "newest" });
    this.plot = el("div", { class: "plot", role: "img" });
    const log = el("button", { type: "button", class: "small", "aria-pressed": "false", title: "Logarithmic y axis", onclick: () => {
      this.isLog = !this.isLog;
      log.setAttribute("aria-pressed", String(this.isLog));
      this.redraw();
    } }, "log");
    const picture = el("button", { type: "button", class: "small", title: "Save this chart as a picture", onclick: () => this.save() }, "png");
    this.element = el("section", { class: "card chart", "aria-label": panel.title, tabIndex: -1 },
      el("header", {}, el("h3", {}, panel.title), panel.bars ? null : log, picture),
      this.newest, this.plot, panel.note ? el("p", { class: "quiet note" }, panel.note) : null);
  }

  get metrics() {
    return Object.keys(this.panel.metrics);
  }

  mark(alarms) {
    this.alarms = [...new Set(alarms.filter((one) => this.panel.alarms?.includes(one.kind)).map((one) => one.step))];
  }

  // Takes what it wants of the series that the server sent, and draws it.
  async draw(series) {
    this.series = series.filter((one) => this.metrics.some((asked) => isPartOf(one.metric, asked)));
    this.plot.hidden = this.series.length === 0;
    if (this.plot.hidden) this.newest.textContent = "Not reported.";
    await this.redraw();
  }

  async redraw() {
    const Plotly = await plotly();
    if (!this.element.isConnected || this.series.length === 0) return;
    const isBars = Boolean(this.panel.bars);
    const curves = isBars ? [] : this.curves();
    const isLog = this.isLog && this.series.every(({ lines }) => lines.every((line) => !line.members.some((one) => one.y.some((y) => y <= 0))));
    const refused = this.isLog && !isLog ? " (not all above 0, so there is no logarithmic axis)" : "";
    this.newest.textContent = isBars ? "" : newest(curves) + refused;
    this.plot.setAttribute("aria-label", `${this.panel.title}: ${this.newest.textContent}`);
    const about = { isLog, isBars, isShare: this.panel.share, xTitle: this.panel.bars, curves, width: this.plot.clientWidth,
      alarms: this.alarms };
    await Plotly.react(this.plot, isBars ? bars(this.series) : traces(curves, about.width), layout(about), CONFIG);
    if (!this.listens) this.listen();
  }

  curves() {
    const found = this.series.flatMap(({ metric, lines }) => lines.map((line) => ({ name: this.nameOf(metric, line), line })));
    return found.map((one, place) => ({ ...one, colour: colour(place) }));
  }

  nameOf(metric, line) {
    const asked = this.metrics.find((one) => isPartOf(metric, one));
    const isEvaluation = asked === "return" || asked.startsWith("metrics.");
    const entry = metric.slice(asked.length + 1) || (isEvaluation && this.panel.firstSet) || "";
    const label = [this.panel.metrics[asked], this.panel.entries?.[entry] || entry].filter(Boolean).join(" ") || metric;
    const whose = this.panel.whose?.(line) ?? [];
    const values = Object.entries(line.values).map(([name, value]) => `${name.split(".").at(-1)}=${value}`);
    const isAlone = this.metrics.length === 1 && metric === asked;
    return [...whose, ...values, isAlone && (whose.length || values.length) ? null : label].filter(Boolean).join(" · ");
  }

  listen() {
    this.listens = true;
    this.plot.on("plotly_relayout", (change) => {
      if (change["xaxis.autorange"]) this.zoomed(null);
      else if ("xaxis.range[0]" in change) this.zoomed([change["xaxis.range[0]"], change["xaxis.range[1]"]]);
    });
  }

  async save() {
    const Plotly = await plotly();
    await Plotly.downloadImage(this.plot, { format: "png", filename: this.panel.title, width: 1000, height: 500 });
  }
}

// The last value of each curve, and where: once if it is the same for all.
function newest(curves) {
  const ends = curves.map(({ name, line }) => ({ name, curve: line.mean ?? line.members[0] })).filter(({ curve }) => curve?.y.length)
    .map(({ name, curve }) => ({ name: shortened(name, 30), value: figure(curve.y.at(-1)), at: place(curve) }));
  if (ends.length === 0 || ends.length > 4) return "";
  if (ends.length === 1) return `${ends[0].value} at ${ends[0].at}`;
  const isCommon = ends.every((one) => one.at === ends[0].at);
  const words = ends.map((one) => `${one.name} ${one.value}${isCommon ? "" : ` at ${one.at}`}`).join(", ");
  return isCommon ? `${words} at ${ends[0].at}` : words;
}

function place(curve) {
  return view.axis === "steps" ? `step ${count(curve.steps.at(-1))}` : duration(curve.seconds.at(-1));
}
