// The steps of the algorithm, each with the numbers that the newest reported update gave it.

import { get, runAddress } from "./api.js";
import { choice, count, el, figure, said, setOptions, table } from "./dom.js";

export function stepsTab(name, failed) {
  let member = "";
  let run = null;
  const who = choice("Seed", [], "", (value) => { member = value; update(run).catch(failed); });
  const about = el("p", { class: "quiet" });
  const letters = el("p", { class: "quiet" });
  const list = el("div", { class: "step-cards" });

  async function update(newest) {
    run = newest;
    member ||= run.members[0].name;
    setOptions(who.querySelector("select"), run.members.map((one) => [one.name, one.title]), member);
    const answer = await get(runAddress(name, "/steps"), { member });
    about.textContent = answer.updates === null ? "No update has been reported yet." : `Update ${count(answer.updates)}, at step ${count(answer.step)}`;
    letters.textContent = answer.steps.length ? answer.letters : "This algorithm's steps are not known to the page; these are the values that its update returned.";
    const cards = answer.steps.length ? answer.steps.map(card) : [values(answer.values)];
    list.replaceChildren(...cards);
  }

  return { element: el("div", {}, el("div", { class: "bar" }, who, about), letters, list), update };
}

function card(step) {
  const settings = Object.entries(step.settings).map(([key, value]) => `${key} = ${said(value)}`).join(", ");
  return el("article", { class: "card" },
    el("h3", {}, `${step.number}. ${step.title}`),
    el("p", { class: "formula" }, step.formula),
    Object.keys(step.values).length ? values(step.values) : null,
    settings ? el("p", { class: "quiet" }, settings) : null,
    el("p", {}, step.why),
    step.without ? el("p", { class: "quiet" }, `Without it: ${step.without}`) : null);
}

function values(found) {
  return table(["", "mean", "std", "first", "shape"], Object.entries(found).map(([name, one]) => [
    name, figure(one.mean), figure(one.std), one.first.map(figure).join(", "), one.shape.join(" × ") || "one number"]));
}
