// Asking the server. Pages do their work in follow(), which repeats it.

const LOOK_MS = 1000;
const RETRY_MS = 2000;
const listeners = new Set();

export class Refused extends Error {} // the server answered, and said why not

export function onConnection(heard) {
  listeners.add(heard);
}

export function query(parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const word of [value].flat()) {
      if (word !== null && word !== undefined && word !== "") search.append(name, word);
    }
  }
  return search.size ? `?${search}` : "";
}

export function runAddress(name, part = "") {
  return `/api/runs/${encodeURIComponent(name)}${part}`;
}

export async function get(path, parameters = {}) {
  return answer(path + query(parameters));
}

export async function send(method, path, body) {
  return answer(path, { method, body: JSON.stringify(body), headers: { "content-type": "application/json" } });
}

async function answer(address, options) {
  const response = await ask(address, options);
  const content = await response.json();
  if (!response.ok) throw new Refused(content.error ?? `The server answered ${response.status}.`);
  return content;
}

async function ask(address, options = {}) {
  let response = null;
  try {
    response = await fetch(address, options);
  } catch { /* said below */ }
  listeners.forEach((heard) => heard(response !== null));
  if (!response) throw new Error("The server does not answer.");
  return response;
}

// Does the work of a page now, whenever its runs (or, without any, the list) have changed, and again soon after it failed.
// A hidden page asks for nothing.
export function follow(runs, work, failed) {
  const address = `/api/live${query({ run: runs })}`;
  let timer = 0;
  let isOver = false;
  let known = ""; // the tag of what the page shows
  const load = oneAtATime(async () => {
    try {
      await work();
    } catch (error) {
      known = "";
      failed(error);
    }
  });
  const look = oneAtATime(async () => {
    clearTimeout(timer);
    if (isOver || document.hidden) return;
    try {
      const response = await ask(address, { headers: { "if-none-match": known } });
      if (response.status !== 304) {
        known = response.headers.get("etag") ?? "";
        await load();
      }
    } catch (error) {
      known = "";
      failed(error);
    }
    clearTimeout(timer);
    if (!isOver) timer = setTimeout(look, known ? LOOK_MS : RETRY_MS);
  });
  document.addEventListener("visibilitychange", look);
  look();
  const leave = () => {
    isOver = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", look);
  };
  return { load, leave };
}

// Makes a function that does the work, and once more afterwards if it was called meanwhile; never twice at a time.
export function oneAtATime(work) {
  let running = false;
  let again = false;
  return async () => {
    again = true;
    if (running) return;
    running = true;
    try {
      while (again) {
        again = false;
        await work();
      }
    } finally {
      running = false;
    }
  };
}
