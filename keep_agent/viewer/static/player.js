// Moves through the steps of an episode, or of two side by side: slider, keys, address, and a run that still grows.

import { html } from "./draw.js";
import { pane } from "./pane.js";
import { track } from "./track.js";

const POLL = 1000; // ms
const KEPT = 80; // steps in memory, per source
const LEAP = 10; // steps, with shift

// sources: { label, overview(since), step(number), picture(number) }; the last gives an address.
// options: step, segment, live, onMove(step, segment).
export function play(root, sources, options) {
  const state = { step: options.step ?? 0, segment: options.segment ?? "", asked: 0, follow: false, stopped: false };
  const tapes = sources.map(tape);
  const panes = sources.map((source) => pane(source, selected));
  const bar = track(go);
  const controls = toolbar({ go, leap, follow });
  const problem = html("p", { class: "problem", role: "alert", hidden: true });
  const stage = html("main", { class: sources.length > 1 ? "panes two" : "panes" }, ...panes.map((one) => one.root));
  root.classList.add("keep-viewer");
  root.replaceChildren(html("nav", { class: "player" }, controls.root, bar.root), problem, stage);
  panes.forEach((one) => one.preset(state.segment));

  const count = () => Math.max(...tapes.map((one) => one.outlines.length));

  function selected(key) {
    state.segment = key;
    options.onMove?.(state.step, state.segment);
  }

  function follow(on) {
    state.follow = on;
    if (on) go(count() - 1);
  }

  function leap(steps) {
    go(state.step + steps);
  }

  async function go(wanted) {
    state.step = Math.min(Math.max(wanted, 0), Math.max(count() - 1, 0));
    if (state.step < count() - 1 && state.follow) controls.unfollow((state.follow = false));
    bar.at(state.step);
    controls.at(state.step, count());
    const mine = ++state.asked;
    const views = await Promise.all(tapes.map((one) => one.view(state.step)));
    if (mine !== state.asked || state.stopped) return; // somebody has moved on
    views.forEach((view, index) => (view.words ? panes[index].say(view.words) : panes[index].show(view)));
    options.onMove?.(state.step, state.segment);
    root.dispatchEvent(new CustomEvent("keep-step", { detail: state.step }));
    tapes.forEach((one) => [state.step + 1, state.step - 1].forEach(one.prefetch));
  }

  function drawTrack() {
    bar.draw(tapes[0].outlines.length >= count() ? tapes[0].outlines : tapes.at(-1).outlines, differing(tapes));
    controls.at(state.step, count());
    const told = tapes.map((one) => one.problem).filter(Boolean);
    problem.hidden = !told.length;
    problem.textContent = told.join(" ");
  }

  async function look() {
    const grown = (await Promise.all(tapes.map((one) => one.look()))).some(Boolean);
    if (!grown || state.stopped) return;
    drawTrack();
    if (state.follow || tapes.some((one) => one.lacks(state.step))) await go(state.follow ? count() - 1 : state.step);
  }

  async function watch() {
    while (options.live && !state.stopped) {
      await new Promise((resolve) => setTimeout(resolve, POLL));
      if (!document.hidden) await look();
    }
  }

  function key(event) {
    if (event.target.matches?.("input:not([type=range]), textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? LEAP : 1;
    const moves = { ArrowLeft: () => leap(-far), ArrowRight: () => leap(far), Home: () => go(0), End: () => go(count() - 1) };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
  }

  function resized() {
    bar.draw(tapes[0].outlines.length >= count() ? tapes[0].outlines : tapes.at(-1).outlines, differing(tapes));
    panes.forEach((one) => one.redraw());
  }

  document.addEventListener("keydown", key);
  window.addEventListener("resize", resized);
  const ready = (async () => {
    await Promise.all(tapes.map((one) => one.look()));
    drawTrack();
    await go(state.step);
    panes.forEach((one) => one.reveal());
    watch();
  })();

  function stop() {
    state.stopped = true;
    document.removeEventListener("keydown", key);
    window.removeEventListener("resize", resized);
  }

  return { go, stop, ready };
}

// Steps where two runs chose otherwise, or one of them had ended.
function differing(tapes) {
  if (tapes.length < 2) return [];
  const [one, other] = tapes.map((each) => each.outlines);
  const steps = Array.from({ length: Math.max(one.length, other.length) }, (_, step) => step);
  return steps.filter((step) => one[step]?.skill !== other[step]?.skill || one[step]?.ok !== other[step]?.ok);
}

// What is known of one source: outlines of all its steps, and the steps looked at lately.
function tape(source) {
  const known = new Map();
  const self = { outlines: [], problem: "", look, view, prefetch, lacks };

  async function look() {
    try {
      const told = await source.overview(self.outlines.length);
      if (told.steps < self.outlines.length) return restart(); // the file was replaced
      const changed = told.outlines.length > 0 || told.problem !== self.problem;
      const ended = told.status !== self.status;
      if (ended) known.delete(self.outlines.length - 1); // it may tell of the end now
      self.outlines.push(...told.outlines);
      [self.problem, self.status, self.crash] = [told.problem, told.status, told.crash];
      return changed || ended;
    } catch (error) {
      self.problem = error.message;
      return true;
    }
  }

  function restart() {
    known.clear();
    self.outlines = [];
    return look();
  }

  function lacks(step) {
    return !known.has(step) && step >= 0;
  }

  function view(step) {
    if (step >= self.outlines.length) return Promise.resolve({ words: ended() });
    if (!known.has(step)) {
      known.set(step, source.step(step).catch((error) => {
        known.delete(step);
        return { words: error.message };
      }));
      if (known.size > KEPT) known.delete(known.keys().next().value);
    }
    return known.get(step);
  }

  function ended() {
    if (self.outlines.length) return `This episode has only ${self.outlines.length} steps.`;
    return self.crash ? `No step was taken: the episode crashed.\n${self.crash}` : "No step was taken yet.";
  }

  function prefetch(step) {
    if (step >= 0 && step < self.outlines.length) view(step);
  }

  return self;
}

function toolbar({ go, leap, follow }) {
  const button = (sign, title, onclick) => html("button", { class: "chip", title, "aria-label": title, onclick }, sign);
  const number = html("input", { type: "number", min: 1, value: 1, "aria-label": "step number", onchange: () => go(Number(number.value) - 1) });
  const of = html("span", {}, "of 0");
  const box = html("input", { type: "checkbox", onchange: () => follow(box.checked) });
  const root = html(
    "div",
    { class: "toolbar" },
    button("⏮", "first step (Home)", () => go(0)),
    button("◀", "one step back (←, with shift 10)", () => leap(-1)),
    button("▶", "one step on (→, with shift 10)", () => leap(1)),
    button("⏭", "last step (End)", () => go(Infinity)),
    html("label", { class: "number" }, "step", number, of),
    html("label", { title: "stay at the last step while the run grows" }, box, "follow"),
  );

  function at(step, steps) {
    number.value = steps ? step + 1 : 0;
    number.max = steps;
    of.textContent = `of ${steps}`;
  }

  return { root, at, unfollow: (on) => { box.checked = on; } };
}

