// Making elements, and writing numbers. Text becomes text nodes: what a run folder says is never read as HTML.

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
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });

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
  if (!run.fresh) return run.best_return === null ? "–" : el("span", { class: "quiet" }, `best evaluation ${figure(run.best_return)}`);
  const { mean, std, episodes, member } = run.fresh;
  return el("span", { title: `best policy of ${member}, ${count(episodes)} fresh episodes` }, `${figure(mean)} ± ${figure(std)}`);
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

export function when(time) {
  const date = new Date(typeof time === "number" ? time * 1000 : time);
  if (Number.isNaN(date.getTime())) return "–";
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
