// The list of runs.

import { follow, get, query } from "./api.js";
import { alarmsInWords, badge, brief, choice, count, duration, el, figure, oneLine, returned, setOptions, when } from "./dom.js";

const STATUSES = ["running", "paused", "finished", "stopped", "failed", "died"];
const COLUMNS = { // what each shows, and by what it is sorted
  name: { head: "Run", key: (run) => run.name.toLowerCase() },
  status: { head: "Status", key: (run) => STATUSES.indexOf(run.status) },
  env: { head: "Environment", key: (run) => run.env.toLowerCase() },
  seeds: { head: "Seeds", key: (run) => run.members.length },
  steps: { head: "Steps", key: (run) => run.steps },
  return: { head: "Return", key: (run) => run.fresh?.mean ?? run.best_return ?? -Infinity },
  alarms: { head: "Alarms", key: (run) => alarmCount(run) },
  started: { head: "Started", key: (run) => run.started },
  took: { head: "Took", key: (run) => run.took_seconds ?? 0 },
};

export function listPage(main, { search }) {
  const asked = { search: "", status: "", tag: "", sort: "started", down: "1", ...Object.fromEntries(search) };
  const chosen = new Set();
  const rows = new Map(); // by run: what it said, and its row
  let runs = [];

  const found = el("p", { class: "quiet", role: "status" });
  const compare = el("a", { class: "button", hidden: true });
  const body = el("tbody", { onkeydown: moveWithArrows });
  const heads = Object.fromEntries(Object.entries(COLUMNS).map(([name, { head }]) => [
    name, el("th", { scope: "col" }, el("button", { class: "sort", type: "button", onclick: () => sortBy(name) }, head))]));
  const words = el("input", { type: "search", value: asked.search, placeholder: "name, environment, tag, note …",
    oninput: () => change({ search: words.value }) });
  const status = choice("Status", [["", "all"], ...STATUSES], asked.status, (value) => change({ status: value }));
  const tag = choice("Tag", [["", "all"]], "", (value) => change({ tag: value }));
  const skipped = el("details", { class: "quiet", hidden: true });

  document.title = "T3D";
  main.append(
    el("h1", {}, "Runs"),
    el("div", { class: "bar" }, el("label", { class: "field wide" }, el("span", {}, "Search ( / )"), words), status, tag, compare),
    found,
    el("div", { class: "scroll" }, el("table", { class: "runs" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span", { class: "unseen" }, "Compare")), Object.values(heads),
        el("th", { scope: "col" }, "Tags and note"))), body)),
    skipped);

  async function work() {
    const answer = await get("/api/runs", { search: asked.search, status: asked.status, tag: asked.tag });
    runs = answer.runs;
    found.textContent = answer.of === 0 ? "There are no runs in this folder yet: start one with t3d train." : `${runs.length} of ${answer.of} runs`;
    setOptions(tag.querySelector("select"), [["", "all"], ...answer.tags], asked.tag);
    skipped.hidden = answer.skipped.length === 0;
    skipped.replaceChildren(el("summary", {}, `${answer.skipped.length} folders here are not runs`),
      el("ul", {}, answer.skipped.map((one) => el("li", {}, `${one.name}: ${one.reason}`))));
    draw();
    if (!answer.complete) setTimeout(load, 200); // curves are still being read
  }

  function change(words) {
    Object.assign(asked, words);
    const { down, ...rest } = asked;
    history.replaceState(null, "", `#/${query({ ...rest, down: down || "0" })}`);
    load();
  }

  function sortBy(name) {
    const isText = ["name", "env", "status"].includes(name);
    const down = asked.sort === name ? asked.down !== "1" : !isText;
    change({ sort: name, down: down ? "1" : "0" });
    draw();
  }

  function draw() {
    const { key } = COLUMNS[asked.sort] ?? COLUMNS.started;
    const sign = asked.down === "1" ? -1 : 1;
    const sorted = [...runs].sort((a, b) => sign * (key(a) < key(b) ? -1 : Number(key(a) > key(b))));
    const focused = body.contains(document.activeElement) ? document.activeElement.closest("tr").dataset.run : null;
    body.replaceChildren(...sorted.map(rowOf));
    if (focused && !body.contains(document.activeElement)) rows.get(focused)?.row.querySelector("a").focus();
    for (const [name, head] of Object.entries(heads)) {
      head.setAttribute("aria-sort", name === asked.sort ? (sign < 0 ? "descending" : "ascending") : "none");
    }
    compare.hidden = chosen.size < 2;
    compare.textContent = `Compare ${chosen.size} runs`;
    compare.href = `#/compare${query({ run: [...chosen] })}`;
  }

  function rowOf(run) {
    const said = JSON.stringify(run);
    if (rows.get(run.name)?.said !== said) rows.set(run.name, { said, row: makeRow(run) });
    return rows.get(run.name).row;
  }

  function makeRow(run) {
    const pick = el("input", { type: "checkbox", checked: chosen.has(run.name), "aria-label": `Compare ${run.name}`,
      onchange: () => { pick.checked ? chosen.add(run.name) : chosen.delete(run.name); draw(); } });
    const row = el("tr", {}, el("td", { class: "pick" }, pick),
      cell("name", el("a", { href: `#/run/${encodeURIComponent(run.name)}` }, oneLine(run.name))),
      cell("status", badge(run.status)),
      cell("env", oneLine(run.env)),
      cell("seeds", count(run.members.length)),
      cell("steps", progress(run)),
      cell("return", [returned(run), sparkline(run.curve ?? [])]),
      cell("alarms", alarms(run)),
      cell("started", el("span", { title: when(run.started) }, when(run.started, true))),
      cell("took", duration(run.took_seconds)),
      el("td", { class: "notes" }, run.tags.map((one) => el("span", { class: "tag" }, one)), el("span", { class: "note" }, run.note)));
    row.dataset.run = run.name;
    return row;
  }

  const { load, leave } = follow([], work, (error) => { found.textContent = error.message; });
  return leave;
}

function cell(name, content) {
  return el("td", { class: name, "data-head": COLUMNS[name].head }, content);
}

function progress(run) {
  const isOver = run.steps >= run.total_steps;
  return el("span", { class: "progress" }, isOver ? count(run.steps) : `${count(run.steps)} of ${brief(run.total_steps)}`,
    el("progress", { max: run.total_steps, value: run.steps, "aria-label": "steps done" }));
}

// The returns of the evaluations, without axes.
function sparkline(values) {
  if (values.length < 2) return null;
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const points = values.map((value, place) => [100 * place / (values.length - 1), high > low ? 20 * (high - value) / (high - low) : 10]);
  const svg = (tag, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    return element;
  };
  const curve = svg("svg", { class: "sparkline", viewBox: "0 0 100 20", preserveAspectRatio: "none", role: "img",
    "aria-label": `evaluations from ${figure(values[0])} to ${figure(values.at(-1))}` });
  curve.append(svg("polyline", { points: points.map((point) => point.map((one) => one.toFixed(1)).join()).join(" ") }));
  return curve;
}

function alarmCount(run) {
  return run.alarms + run.diverged.length + (run.failure ? 1 : 0);
}

function alarms(run) {
  const words = [];
  if (run.failure) words.push(run.failure);
  if (run.diverged.length) words.push(`diverged: ${run.diverged.join(", ")}`);
  if (run.alarms) words.push(alarmsInWords(run.alarm_kinds));
  return el("span", { class: words.length ? "bad" : "quiet" }, words.join("; ") || "–");
}

function moveWithArrows(event) {
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const row = event.target.closest("tr");
  if (!step || !row) return;
  const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
  if (next) {
    event.preventDefault();
    next.querySelector(event.target.matches("input") ? "input" : "a").focus();
  }
}
