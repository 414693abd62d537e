// The settings of a run: what differs from the defaults, from another run, and all of them; the machine it runs on.

import { get, runAddress } from "./api.js";
import { bytes, choice, count, el, oneLine, said, setOptions, table } from "./dom.js";

export function configTab(name, failed) {
  let against = "";
  const changed = el("div", { class: "card" });
  const difference = el("div", {});
  const other = choice("Compare with", [["", "no other run"]], "", (value) => { against = value; ask().catch(failed); });
  const filter = el("input", { type: "search", placeholder: "gamma", oninput: () => list() });
  const everything = el("div", {});
  const source = el("pre", {});
  const machine = el("div", { class: "card" });
  let settings = [];
  let isAsked = false;

  async function update(run) {
    changed.replaceChildren(el("h2", {}, "What differs from the defaults"), rowsOr("Nothing.", ["setting", "value", "default"],
      Object.entries(run.settings).map(([key, { value, default: usual }]) => [key, said(value), said(usual)])));
    machine.replaceChildren(el("h2", {}, "Machine and versions"), table(["", ""], machineRows(run.session)));
    if (isAsked) return; // settings do not change while a run trains
    await ask();
    isAsked = true;
  }

  async function ask() {
    const [answer, { runs }] = await Promise.all([get(runAddress(name, "/config"), { against }), get("/api/runs")]);
    setOptions(other.querySelector("select"), [["", "no other run"], ...runs.map((run) => run.name).filter((one) => one !== name)], against);
    difference.replaceChildren(answer.diff === null ? "" : rowsOr("The settings are the same.", ["setting", oneLine(name), oneLine(answer.against)],
      Object.entries(answer.diff).map(([key, row]) => [key, said(row.this), said(row.other)])));
    settings = flat(answer.config);
    source.textContent = answer.source;
    list();
  }

  function list() {
    const words = filter.value.toLowerCase();
    everything.replaceChildren(table(["setting", "value"], settings.filter(([key, value]) => `${key} ${value}`.toLowerCase().includes(words))));
  }

  return { update, element: el("div", { class: "columns" },
    changed,
    el("div", { class: "card" }, el("h2", {}, "Difference to another run"), other, difference),
    machine,
    el("div", { class: "card" }, el("h2", {}, "All settings"), el("label", { class: "field" }, el("span", {}, "Search"), filter), everything),
    el("details", { class: "card" }, el("summary", {}, "config.toml"), source)) };
}

function flat(config, before = "") {
  return Object.entries(config).flatMap(([key, value]) =>
    (value !== null && typeof value === "object" && !Array.isArray(value) ? flat(value, `${before}${key}.`) : [[before + key, said(value)]]));
}

function rowsOr(otherwise, heads, rows) {
  return rows.length ? table(heads, rows) : el("p", { class: "quiet" }, otherwise);
}

function machineRows(session) {
  const { versions, ...rest } = session;
  return [
    ["host and process", `${rest.host ?? "–"}, ${rest.pid ?? "–"}`],
    ["device, engine, threads", [rest.device, rest.engine, rest.threads].map(said).join(", ")],
    ...(rest.engine_reason ? [["why no faster engine", rest.engine_reason]] : []),
    ["parameters of one seed", count(rest.parameters)],
    ["replay memory", bytes(rest.replay_bytes ?? 0)],
    ...Object.entries(versions ?? {}).map(([key, value]) => [key, said(value)]),
  ];
}
