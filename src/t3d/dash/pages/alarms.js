// What is wrong with a run, in words, at the top of its page.

import { count, el } from "./dom.js";
import { isReported, PANELS } from "./panels.js";

const SHOWN = 6;

// linkTo(title of a chart) makes a link to it.
export function alarmBox(linkTo) {
  const element = el("section", { class: "alarm-box", "aria-label": "Alarms", "aria-live": "polite", hidden: true });
  let before = "";

  function update(run) {
    const found = [...failures(run), ...diverged(run), ...alarms(run)];
    const said = JSON.stringify(found);
    element.hidden = found.length === 0;
    if (said === before) return;
    before = said;
    const items = found.map(({ title, text, advice, charts = [] }) => el("li", {}, el("strong", {}, title), " ", text,
      advice ? el("span", { class: "advice" }, ` ${advice}`) : null, charts.flatMap((chart, place) => [place ? ", " : " See: ", linkTo(chart)])));
    element.replaceChildren(el("h2", {}, "What looks wrong"), el("ul", {}, items.slice(0, SHOWN)),
      ...(items.length > SHOWN ? [el("details", {}, el("summary", {}, `${items.length - SHOWN} more`), el("ul", {}, items.slice(SHOWN)))] : []));
  }

  return { element, update };
}

function failures(run) {
  if (run.status === "died") return [{ title: "The process has died", text: "without saying why: it was killed, or the machine went down. t3d resume goes on from the newest checkpoint." }];
  return run.failure ? [{ title: "The run failed:", text: run.failure }] : [];
}

function diverged(run) {
  return run.members.filter((one) => one.diverged).map((one) => ({
    title: `${one.title} diverged at step ${count(one.diverged.step)}:`, text: one.diverged.text }));
}

// Each kind of alarm once: what the newest one says, which seeds had it, and how often it came.
function alarms(run) {
  const kinds = new Map();
  const reported = Object.values(run.metrics).flat();
  const chartsOf = (kind) => PANELS.filter((panel) => panel.alarms?.includes(kind) && isReported(panel, reported)).map((panel) => panel.title);
  for (const alarm of run.alarms) {
    const before = kinds.get(alarm.kind) ?? { who: new Set(), times: 0 };
    kinds.set(alarm.kind, { alarm, who: before.who.add(alarm.member ?? "the run"), times: before.times + 1 });
  }
  return [...kinds.values()].sort((a, b) => b.alarm.step - a.alarm.step).map(({ alarm, who, times }) => ({
    title: `${[...who].join(", ")}, step ${count(alarm.step)}${times > 1 ? `, ${times} alarms` : ""}:`,
    text: alarm.text, advice: alarm.advice && `Try: ${alarm.advice}`, charts: chartsOf(alarm.kind) }));
}
