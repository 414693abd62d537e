// Making elements, and writing numbers. Text becomes text nodes: what a run folder says is never read as HTML.

const TAIL = 12; // characters of a long name's end that are always shown

export function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && typeof value !== "string") element[name] = value;
    else if (value !== null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// A name in one line, whose middle is left out where there is no room for it: names often differ in their ends only.
export function oneLine(name) {
  const end = name.length > 2 * TAIL ? name.length - TAIL : name.length;
  return el("span", { class: "one-line", title: name, "aria-label": name }, [name.slice(0, end), name.slice(end)].map((part) => el("span", {}, part)));
}

// The same for where only text can be written.
export function shortened(name, most) {
  const end = Math.min(TAIL, Math.floor(most / 2));
  return name.length <= most ? name : `${name.slice(0, most - end - 1)}…${name.slice(-end)}`;
}

export function choice(label, options, chosen, change) {
  const select = el("select", { onchange: () => change(select.value) });
  setOptions(select, options, chosen);
  return el("label", { class: "field" }, el("span", {}, label), select);
}

export function setOptions(select, options, chosen) {
  const wanted = options.map((one) => (Array.isArray(one) ? one : [one, one]));
  const before = [...select.options].map((one) => `${one.value}\n${one.text}`).join("\n");
  if (before !== wanted.map(([value, text]) => `${value}\n${text}`).join("\n")) {
    select.replaceChildren(...wanted.map(([value, text]) => el("option", { value }, text)));
  }
  select.value = chosen;
}

export function table(heads, rows, caption) {
  return el("div", { class: "scroll" }, el("table", {},
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, heads.map((head) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.map(([first, ...rest]) => el("tr", {},
      el("th", { scope: "row" }, first), rest.map((cell) => el("td", {}, cell)))))));
}

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

export function brief(value) {
  return compact.format(value);
}

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function figure(value) {
  if (typeof value !== "number") return "–";
  const size = Math.abs(value);
  const isExtreme = size !== 0 && (size < 1e-3 || size >= 1e7);
  const text = isExtreme ? size.toExponential(2) : (size >= 1000 ? whole : short).format(size);
  return value < 0 ? `−${text}` : text;
}

// What a run's best policy returned on fresh episodes or, where it has played none, its best evaluations as such.
export function returned(run) {
  if (!run.fresh) return run.best_return === null ? "–" : el("span", { class: "quiet", title: "its best evaluation" }, `at best ${figure(run.best_return)}`);
  const { mean, std, episodes, member, metrics } = run.fresh;
  const success = metrics?.success === undefined ? "" : `, success ${Math.round(100 * metrics.success)} %`;
  return el("span", { title: `best policy of ${member}, ${count(episodes)} fresh episodes` }, `${figure(mean)} ± ${figure(std)}${success}`);
}

export function duration(seconds) {
  if (typeof seconds !== "number") return "–";
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(value) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) {
    value /= 1000;
    place += 1;
  }
  return `${place && value < 10 ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}

// isBrief: without the year, or without the time of day in an earlier year.
export function when(time, isBrief = false) {
  const date = new Date(typeof time === "number" ? time * 1000 : time);
  if (Number.isNaN(date.getTime())) return "–";
  if (isBrief) {
    const rest = date.getFullYear() === new Date().getFullYear() ? { hour: "2-digit", minute: "2-digit" } : { year: "numeric" };
    return date.toLocaleString("en-GB", { day: "numeric", month: "short", ...rest });
  }
  return date.toLocaleString("en-GB", { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" });
}

export function said(value) {
  return typeof value === "string" ? value : JSON.stringify(value) ?? "–";
}

// "2 alarms: dead units (2)", of an object with how many there are of each kind; empty if there are none.
export function alarmsInWords(kinds) {
  const total = Object.values(kinds).reduce((sum, times) => sum + times, 0);
  const named = Object.entries(kinds).map(([kind, times]) => `${kind.replaceAll("-", " ")}${times > 1 ? ` (${times})` : ""}`);
  return total ? `${total} alarm${total > 1 ? "s" : ""}: ${named.join(", ")}` : "";
}

export function badge(status) {
  return el("span", { class: `badge ${/^[a-z]+$/.test(status) ? status : ""}` }, status);
}
