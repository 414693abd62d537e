// Shows the page that the address names: #/ the list, #/run/NAME/TAB one run, #/compare?run=A&run=B several.

import { get, onConnection } from "./api.js";
import { comparePage } from "./compare.js";
import { listPage } from "./list.js";
import { runPage } from "./run.js";

const PAGES = { "": listPage, run: runPage, compare: comparePage }; // each fills main, and returns how to leave it
const main = document.getElementById("main");
const banner = document.getElementById("connection");
let leave = () => {};

function route() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [page, ...words] = path.split("/").map(decodeURIComponent);
  return { page, words, search: new URLSearchParams(search) };
}

function show() {
  if (location.hash === "#main") return; // the link that skips to the content
  const asked = route();
  leave();
  main.replaceChildren();
  leave = (PAGES[asked.page] ?? listPage)(main, asked);
  for (const link of document.querySelectorAll("header nav a")) {
    const isHere = link.hash.replace(/^#\//, "") === asked.page;
    if (isHere) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

onConnection((isUp) => {
  banner.hidden = isUp;
  banner.textContent = isUp ? "" : "The dashboard's server does not answer: it has ended, or cannot be reached. Trying again every two seconds.";
});

document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, dialog");
  const search = document.querySelector("input[type=search]");
  if (event.key === "/" && !isTyping && search) {
    event.preventDefault();
    search.closest("details")?.setAttribute("open", "");
    search.focus();
  }
});

window.addEventListener("hashchange", () => {
  show();
  if (location.hash !== "#main") window.scrollTo(0, 0);
});
get("/api/session").then(({ root }) => { document.getElementById("root").textContent = root; }, () => {});
show();
