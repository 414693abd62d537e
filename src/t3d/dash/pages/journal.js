// What happened to a run, newest first, and what its folder holds.

import { bytes, count, el, table, when } from "./dom.js";

export function journalTab() {
  const news = el("div", { class: "card" });
  const files = el("div", { class: "card" });

  function update(run) {
    news.replaceChildren(el("h2", {}, "What happened"),
      table(["when", "step", "what"], [...run.news].reverse().map((one) => [when(one.time), count(one.step), one.text || one.event])));
    files.replaceChildren(el("h2", {}, "Files"),
      run.damaged_lines ? el("p", { class: "bad" }, `${run.damaged_lines} lines of events.jsonl cannot be read, and are left out.`) : "",
      table(["file", "size"], Object.entries(run.files).map(([name, size]) => [name, bytes(size)])));
  }

  return { element: el("div", { class: "columns" }, news, files), update };
}
