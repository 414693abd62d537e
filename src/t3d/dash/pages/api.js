// Asking the server, and hearing from it. Pages do their work in follow(), which repeats it.

const RETRY_MS = 2000;
const listeners = new Set();

export class Refused extends Error {} // the server answered, and said why not

export function onConnection(heard) {
  listeners.add(heard);
}

export function query(parameters) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") search.append(name, one);
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

async function answer(address, options = {}) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    listeners.forEach((heard) => heard(false));
    throw new Error("The server does not answer.");
  }
  listeners.forEach((heard) => heard(true));
  const content = await response.json();
  if (!response.ok) throw new Refused(content.error ?? `The server answered ${response.status}.`);
  return content;
}

// Does the work of a page now, whenever what it shows has changed, and again soon after it failed.
export function follow(runs, work, failed) {
  let timer = 0;
  let isOver = false;
  const load = oneAtATime(async () => {
    clearTimeout(timer);
    try {
      await work();
    } catch (error) {
      failed(error);
      if (!isOver) timer = setTimeout(load, RETRY_MS);
    }
  });
  const end = watch(runs, load);
  load();
  const leave = () => {
    isOver = true;
    clearTimeout(timer);
    end();
  };
  return { load, leave };
}

// Calls heard() whenever the runs (or, without any, the list) have changed, and when the connection was lost, until the
// returned function is called. A hidden page holds no connection: browsers allow only six to a server.
function watch(runs, heard) {
  const address = `/api/live${query({ run: runs })}`;
  let source = null;
  let timer = 0;
  const close = () => {
    source?.close();
    source = null;
    clearTimeout(timer);
  };
  const open = () => {
    close();
    if (document.hidden) return;
    source = new EventSource(address);
    source.addEventListener("run", heard);
    source.addEventListener("runs", heard);
    source.addEventListener("error", () => {
      close();
      heard();
      timer = setTimeout(open, RETRY_MS);
    });
  };
  document.addEventListener("visibilitychange", open);
  open();
  return () => {
    document.removeEventListener("visibilitychange", open);
    close();
  };
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
