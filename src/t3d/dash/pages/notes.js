// Tags and a note of a run: shown, and changed in place.

import { runAddress, send } from "./api.js";
import { el } from "./dom.js";

export function notesForm(name) {
  const shown = el("p", { class: "notes" });
  const tags = el("input", { type: "text", placeholder: "baseline, small network", maxlength: "1000" });
  const note = el("textarea", { rows: "3", maxlength: "10000" });
  const problem = el("span", { class: "bad", role: "alert" });
  const form = el("form", { class: "card", hidden: true, onsubmit: store },
    el("label", { class: "field wide" }, el("span", {}, "Tags, with commas between them"), tags),
    el("label", { class: "field wide" }, el("span", {}, "Note"), note),
    el("div", { class: "bar" }, el("button", { type: "submit" }, "Save"), el("button", { type: "button", onclick: close }, "Cancel"), problem));
  const edit = el("button", { type: "button", class: "small", onclick: open }, "Edit tags and note");
  const element = el("section", { class: "about", "aria-label": "Tags and note" }, shown, edit, form);
  let stored = { tags: [], note: "" };
  let before = stored; // when the form was opened

  function open() {
    before = stored;
    tags.value = stored.tags.join(", ");
    note.value = stored.note;
    problem.textContent = "";
    form.hidden = false;
    edit.hidden = true;
    tags.focus();
  }

  function close() {
    form.hidden = true;
    edit.hidden = false;
    edit.focus();
  }

  async function store(event) {
    event.preventDefault();
    try {
      const wanted = tags.value.split(",").map((tag) => tag.trim()).filter(Boolean);
      update(await send("PUT", runAddress(name, "/notes"), { tags: wanted, note: note.value, before }));
      close();
    } catch (error) {
      problem.textContent = error.message;
    }
  }

  function update(run) {
    stored = { tags: run.tags, note: run.note };
    shown.hidden = !run.tags.length && !run.note;
    shown.replaceChildren(...run.tags.map((tag) => el("span", { class: "tag" }, tag)), el("span", { class: "note" }, run.note));
  }

  return { element, update };
}
