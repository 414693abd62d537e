// Pause, continue, save and stop, for those who have the token.

import { get, runAddress, send } from "./api.js";
import { el } from "./dom.js";

export function controls(name, failed) {
  const told = el("span", { class: "quiet", role: "status" });
  const pause = button("Pause", () => ask(pause.dataset.action));
  const save = button("Save a checkpoint", () => ask("save"));
  const stop = button("Stop …", () => confirm.showModal());
  const confirm = el("dialog", { "aria-labelledby": "stop-title" },
    el("h2", { id: "stop-title" }, `Stop ${name}?`),
    el("p", {}, "It saves a checkpoint and ends. t3d resume can continue from there."),
    el("div", { class: "bar" },
      button("Stop the run", () => { confirm.close(); ask("stop"); }, "danger"),
      button("Let it train", () => confirm.close())));
  const buttons = el("div", { class: "bar" }, pause, save, stop, told);
  const element = el("section", { class: "control", "aria-label": "Control", hidden: true }, buttons, confirm);
  let session = null;
  let asked = null;
  let newest; // checkpoint that the page knows of
  let before; // the same when a request was made

  async function ask(action) {
    told.textContent = { pause: "Asked to pause …", continue: "Asked to continue …", save: "Asked to save …", stop: "Asked to stop …" }[action];
    asked = action;
    before = newest;
    try {
      await send("POST", runAddress(name, "/control"), { action });
    } catch (error) {
      told.textContent = error.message;
    }
  }

  async function update(run) {
    element.hidden = run.control === null;
    if (run.control === null) {
      if (confirm.open) confirm.close();
      return;
    }
    const isPaused = run.status === "paused";
    pause.textContent = isPaused ? "Continue" : "Pause";
    pause.dataset.action = isPaused ? "continue" : "pause";
    newest = run.news.findLast((one) => one.event === "saved")?.time;
    const isDone = { pause: isPaused, continue: !isPaused, save: newest !== before }[asked];
    if (isDone) {
      told.textContent = { pause: "Paused.", continue: "", save: "Saved." }[asked];
      asked = null;
    }
    session ??= await get("/api/session").catch(failed);
    const may = Boolean(session?.may_control);
    [pause, save, stop].forEach((one) => { one.disabled = !may; });
    if (!may) told.textContent = "To pause, save or stop, open the address that t3d dash printed: it has the token.";
  }

  return { element, update };
}

function button(text, onclick, kind = "") {
  return el("button", { type: "button", class: kind, onclick }, text);
}
