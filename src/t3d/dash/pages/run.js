// One run: what it is and how it does, alarms at the top, and below one of its tabs.

import { follow, get, query, Refused, runAddress } from "./api.js";
import { alarmBox } from "./alarms.js";
import { configTab } from "./config.js";
import { controls } from "./control.js";
import { curves } from "./curves.js";
import { badge, count, duration, el, figure, returned, when } from "./dom.js";
import { journalTab } from "./journal.js";
import { notesForm } from "./notes.js";
import { panelsOf } from "./panels.js";
import { stepsTab } from "./steps.js";
import { videosTab } from "./videos.js";

const TABS = { // each is made with the run's name and a way to say what failed; has an element, update(run), which may throw, and perhaps goTo(chart)
  curves: { title: "Curves", make: curvesTab },
  steps: { title: "Steps", make: stepsTab },
  videos: { title: "Videos", make: videosTab },
  config: { title: "Configuration", make: configTab },
  journal: { title: "Journal", make: journalTab },
};

export function runPage(main, { words, search }) {
  const [name, asked = "curves"] = words;
  let chart = search.get("chart"); // to go to, once it is there
  const which = asked in TABS ? asked : "curves";
  const problem = el("p", { class: "banner", role: "alert", hidden: true });
  const head = el("div", { class: "head" });
  const alarms = alarmBox(linkTo);
  const control = controls(name, failed);
  const notes = notesForm(name);
  const tab = TABS[which].make(name, failed);
  document.title = `${name} · T3D`;
  main.append(
    el("p", { class: "quiet crumb" }, el("a", { href: "#/" }, "Runs"), " /"),
    problem, head, alarms.element, control.element, notes.element,
    el("nav", { class: "tabs", "aria-label": "Parts of the run" }, Object.entries(TABS).map(([key, { title }]) =>
      el("a", { href: addressOf(key), "aria-current": key === which ? "page" : null }, title))),
    tab.element);

  function addressOf(key) {
    return `#/run/${encodeURIComponent(name)}/${key}`;
  }

  function linkTo(title) {
    return el("a", { href: `${addressOf("curves")}${query({ chart: title })}`, onclick: (event) => {
      if (!tab.goTo) return;
      event.preventDefault(); // it is on this page
      tab.goTo(title);
    } }, title);
  }

  function failed(error) {
    problem.hidden = false;
    problem.textContent = error instanceof Refused ? `${error.message}. Trying again.` : error.message;
  }

  async function load() {
    const run = await get(runAddress(name));
    problem.hidden = true;
    head.replaceChildren(...headOf(run));
    alarms.update(run);
    control.update(run);
    notes.update(run);
    await tab.update(run);
    if (chart) tab.goTo?.(chart);
    chart = null;
  }

  return follow([name], load, failed).leave;
}

function curvesTab(name, failed) {
  const element = el("div", {});
  let drawn = null; // which charts there are depends on the run
  const ask = (parameters) => get(runAddress(name, "/series"), parameters);
  function update(run) {
    drawn ??= curves([name], panelsOf(run), ask, failed);
    if (!element.firstChild) element.append(drawn.element);
    return drawn.update(Object.values(run.metrics).flat(), run.alarms);
  }
  return { element, update, goTo: (title) => drawn?.goTo(title) };
}

function headOf(run) {
  const facts = [
    ["Steps", `${count(run.steps)} of ${count(run.total_steps)}`],
    ["Return", returned(run)],
    ...(run.fresh ? [["Best evaluations", figure(run.best_return)]] : []),
    ["Newest return", newestReturn(run.members)],
    [run.seeds.length === 1 ? "Seed" : "Seeds", run.seeds.join(", ")],
    ["Took", duration(run.took_seconds)],
    ["Started", when(run.started)],
    ["Runs on", [run.session.host, run.session.device, run.session.engine].filter(Boolean).join(", ")],
  ];
  return [
    el("h1", { title: run.name }, el("span", { class: "two-lines" }, run.name), " ", badge(run.status)),
    el("p", { class: "quiet" }, `${run.env}, preset ${run.preset}${run.origin ? `, started from ${run.origin}` : ""}`),
    el("progress", { class: "wide", max: run.total_steps, value: run.steps, "aria-label": "steps done" }),
    el("dl", { class: "facts" }, facts.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  ];
}

function newestReturn(members) {
  const last = members.filter((one) => one.last && !one.diverged).map((one) => one.last.mean);
  if (last.length === 0) return "–";
  const mean = last.reduce((sum, value) => sum + value, 0) / last.length;
  return last.length > 1 ? `${figure(mean)} (mean of ${last.length} seeds)` : figure(mean);
}
