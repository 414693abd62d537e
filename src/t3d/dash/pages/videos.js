// Videos of evaluations over the course of training, with a slider.

import { runAddress } from "./api.js";
import { bytes, choice, count, el, setOptions, when } from "./dom.js";

export function videosTab(name) {
  let all = [];
  let member = "";
  let shown = null; // the video on the screen
  const who = choice("Seed", [], "", (value) => { member = value; show(mine().at(-1)); });
  const slider = el("input", { type: "range", min: "0", value: "0", class: "wide", oninput: () => show(mine()[Number(slider.value)]) });
  const video = el("video", { controls: true, loop: true, muted: true, playsInline: true, preload: "auto" });
  const about = el("p", { role: "status" });
  const player = el("div", { class: "card player", hidden: true }, video, about,
    el("div", { class: "bar" }, who, el("label", { class: "field wide" }, el("span", {}, "From the first to the newest"), slider)));
  const empty = el("p", { class: "quiet" }, "There are no videos yet. t3d train --record-every N records every N-th evaluation, and t3d record RUN the best policy.");

  const mine = () => all.filter((one) => one.member === null || one.member === member);

  function show(one) {
    if (!one) return;
    const videos = mine();
    slider.max = String(videos.length - 1);
    slider.value = String(videos.findIndex((other) => other.file === one.file));
    const step = one.step === null ? "best policy" : `step ${count(one.step)}`;
    about.textContent = `${step}, ${Number(slider.value) + 1} of ${videos.length} (${one.file}, ${bytes(one.bytes)}, ${when(one.time)})`;
    slider.setAttribute("aria-valuetext", step);
    if (shown?.file === one.file && shown.time === one.time) return;
    shown = one;
    video.src = runAddress(name, `/videos/${one.file.split("/").map(encodeURIComponent).join("/")}`);
    if (!window.matchMedia("(prefers-reduced-motion: reduce)").matches) video.play().catch(() => {}); // or its own button
  }

  function update(run) {
    const wasNewest = shown === null || shown.file === mine().at(-1)?.file;
    all = run.videos;
    const members = [...new Set(all.map((one) => one.member).filter(Boolean))];
    member ||= members[0] ?? "";
    setOptions(who.querySelector("select"), members, member);
    who.hidden = members.length < 2;
    player.hidden = all.length === 0;
    empty.hidden = all.length > 0;
    show(wasNewest ? mine().at(-1) : mine().find((one) => one.file === shown.file));
  }

  return { element: el("div", {}, empty, player), update };
}
