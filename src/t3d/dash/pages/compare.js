// Several runs beside each other: their curves in common charts, and the settings in which they differ.

import { follow, get, query } from "./api.js";
import { curves } from "./curves.js";
import { alarmsInWords, badge, choice, count, duration, el, oneLine, returned, said, table } from "./dom.js";
import { PANELS } from "./panels.js";

const MOST = 30; // that the server compares
const FEW = 8; // settings that are shown at once
const whose = (line) => [line.runs.join(" + ")];
const PANELS_OF_RUNS = PANELS.filter((panel) => !panel.bars).flatMap((panel) => Object.entries(panel.metrics).map(
  ([metric, label], _, all) => ({ ...panel, whose, metrics: { [metric]: label }, title: all.length > 1 ? `${panel.title}: ${label}` : panel.title })));

export function comparePage(main, { search }) {
  const names = search.getAll("run").slice(0, MOST);
  const pool = search.get("pool") ?? "yes";
  const words = el("input", { type: "search", value: search.get("search") ?? "", placeholder: "name, environment, tag, note …", oninput: drawPicks });
  const problem = el("p", { class: "banner", role: "alert", hidden: true });
  const picks = el("div", { class: "picks" });
  const overview = el("div", { class: "card pinned overview" });
  const settings = el("details", { class: "card pinned" });
  let all = []; // runs as the list has them
  let known = []; // those that are compared
  let alarms = {}; // by run and kind: how many
  let isFirst = true;
  document.title = "Compare · T3D";

  const charts = curves(names, PANELS_OF_RUNS, ask, failed);

  main.append(
    el("h1", {}, "Compare"), problem,
    el("details", { class: "card", open: names.length < 2 || words.value !== "" }, el("summary", {}, `Runs (${names.length} chosen)`),
      el("label", { class: "field search" }, el("span", {}, "Search ( / )"), words), picks),
    el("div", { class: "bar" },
      choice("Runs that differ only in their seeds", [["yes", "as one curve"], ["no", "apart"]], pool, (value) => go(names, value, words.value))),
    overview);
  if (names.length) main.append(settings, charts.element);

  function failed(error) {
    problem.hidden = false;
    problem.textContent = error.message;
  }

  async function ask(parameters) {
    const answer = await get("/api/compare", { run: names, pool, ...parameters });
    const rows = Object.entries(answer.settings).map(([key, row]) => [key, ...names.map((name) => said(row[name] ?? null))]);
    settings.replaceChildren(el("summary", {}, `Settings that differ (${rows.length})`), table(["setting", ...names.map(oneLine)], rows));
    if (isFirst) settings.open = rows.length > 0 && rows.length <= FEW;
    isFirst = false;
    alarms = answer.alarms;
    drawOverview();
    return answer;
  }

  async function load() {
    all = (await get("/api/runs")).runs;
    problem.hidden = true;
    if (!picks.contains(document.activeElement)) drawPicks();
    known = names.flatMap((name) => all.find((run) => run.name === name) ?? []);
    drawOverview();
    const gone = names.filter((name) => !known.some((run) => run.name === name));
    if (gone.length) throw new Error(`No longer there: ${gone.join(", ")}.`);
    if (names.length) await charts.update(PANELS_OF_RUNS.flatMap((panel) => Object.keys(panel.metrics)));
  }

  function drawOverview() {
    if (overview.contains(document.activeElement)) return; // a link that is about to be followed
    const heads = ["run", "status", "alarms", "environment", "steps", "return", "took"];
    overview.replaceChildren(known.length ? table(heads, known.map((run) => rowOf(run, alarms[run.name])))
      : el("p", { class: "quiet" }, "Choose the runs to compare."));
  }

  // Those that are chosen come first.
  function drawPicks() {
    const asked = words.value.toLowerCase().split(/\s+/);
    const found = all.filter((run) => asked.every((word) => [run.name, run.env, ...run.tags, run.note].join("\n").toLowerCase().includes(word)));
    picks.replaceChildren(...[true, false].flatMap((isChosen) => found.filter((run) => names.includes(run.name) === isChosen)).map(pick));
    if (found.length === 0 && all.length) picks.replaceChildren(el("p", { class: "quiet" }, "No run has these words."));
  }

  function pick(run) {
    const box = el("input", { type: "checkbox", checked: names.includes(run.name), onchange: () =>
      go(box.checked ? [...names, run.name] : names.filter((name) => name !== run.name), pool, words.value) });
    return el("label", {}, box, oneLine(run.name), el("span", { class: "quiet" }, run.env));
  }

  return follow(names, load, failed).leave;
}

function rowOf(run, alarms) {
  const href = `#/run/${encodeURIComponent(run.name)}`;
  const words = alarms ? wrongOf(run, alarms) : "…"; // the logs are being read
  return [el("a", { href }, oneLine(run.name)), badge(run.status), words ? el("a", { href, class: "alarms" }, words) : "–",
    oneLine(run.env), count(run.steps), returned(run), duration(run.took_seconds)];
}

// How many alarms and of which kinds, after what is worse.
function wrongOf(run, alarms) {
  return [run.failure ? "failed" : null, run.diverged.length ? `diverged: ${run.diverged.join(", ")}` : null,
    alarmsInWords(alarms)].filter(Boolean).join("; ");
}

function go(names, pool, search) {
  location.hash = `#/compare${query({ run: names, pool: pool === "no" ? "no" : "", search })}`;
}
