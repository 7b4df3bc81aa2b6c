// One run's side of the page: the step in words on top, its panels below. Every panel is refilled, never rebuilt.

import { absent, html, svg } from "./draw.js";
import { scoresPanel, timesPanel } from "./decision.js";
import { detailPanel } from "./detail.js";
import { hopsPanel } from "./hops.js";
import { layersPanel } from "./layers.js";
import { memoryPanel } from "./memory.js";
import { timelinePanel } from "./timeline.js";
import { worldPanel } from "./world.js";

export function pane(source, onSelect) {
  const state = { view: null, selected: "" };
  const events = { select };
  const head = html("header", { class: "step" });
  const memory = memoryPanel(events);
  const [layers, hops, detail] = [layersPanel(events), hopsPanel(events), detailPanel(events)];
  const [timeline, scores, times, world] = [timelinePanel(), scoresPanel(), timesPanel(), worldPanel(source)];
  const gone = html("div", { class: "gone" });
  const grid = html(
    "div",
    { class: "grid" },
    html("div", { class: "left" }, memory.root, detail.root),
    html("div", { class: "middle" }, layers.root, hops.root, timeline.root),
    html("div", { class: "right" }, scores.root, times.root, world.root),
  );
  const root = html("article", { class: "pane" }, html("h1", {}, source.label), head, gone, grid);

  function select(key, layer) {
    state.selected = key === state.selected && layer === undefined ? "" : key;
    if (layer !== undefined) hops.at(layer);
    drawSelection();
    memory.reveal(state.selected);
    onSelect(state.selected);
  }

  function drawSelection() {
    const prompt = state.view?.prompt ?? null;
    memory.show(prompt, state.selected);
    layers.show(prompt, state.selected);
    hops.show(prompt, state.selected);
    detail.show(prompt, state.selected);
  }

  function show(view) {
    state.view = view;
    gone.replaceChildren();
    grid.hidden = head.hidden = false;
    head.replaceChildren(...heading(view));
    grid.classList.toggle("plain", !view.prompt);
    detail.root.hidden = !view.prompt;
    [layers, hops, timeline].forEach((one) => one.measure()); // all of them before any is drawn: one layout
    drawSelection();
    timeline.show(view.prompt);
    times.show(view.prompt);
    scores.show(view);
    world.show(view);
  }

  function say(words) {
    state.view = null;
    grid.hidden = head.hidden = true;
    gone.replaceChildren(absent(words));
  }

  function differs(parted) {
    root.classList.toggle("differs", parted);
  }

  function redraw() {
    if (state.view) show(state.view);
  }

  function preset(key) {
    state.selected = key;
  }

  return { root, show, say, redraw, preset, differs, reveal: () => memory.reveal(state.selected) };
}

function heading(view) {
  const result = html("span", { class: view.ok ? "result ok" : "result no" }, view.ok ? "✓ done" : "✗ failed");
  const action = html("p", { class: "action" }, html("b", {}, view.skill), result, html("span", { class: "message" }, view.message));
  const asked = html("p", { class: "instruction" }, view.instruction);
  const told = html("p", { class: "tags" }, goal(view.goal), ...tags(view));
  const found = [html("div", { class: "said" }, asked, action), told];
  if (view.end) found.push(ended(view.end));
  if (view.crash) found.push(html("details", { class: "crash" }, html("summary", {}, "The episode crashed behind this step"), html("pre", {}, view.crash)));
  return found;
}

function goal(conditions) {
  if (!conditions) return html("span", { class: "goal" }, "goal conditions: not in this trace");
  const [met, total] = conditions;
  const pips = svg("svg", { width: Math.min(total, 12) * 12, height: 12, "aria-hidden": "true" });
  for (let number = 0; number < Math.min(total, 12); number++) {
    pips.append(svg("circle", { cx: 6 + 12 * number, cy: 6, r: 4, class: number < met ? "met" : "unmet" }));
  }
  return html("span", { class: "goal" }, pips, `${met} of ${total} goal conditions met`);
}

function tags(view) {
  const found = [`task ${view.task + 1}, its step ${view.step + 1}`];
  if (view.prompt?.cold) found.push("cold: first prompt after a reset");
  for (const flip of view.prompt?.flips ?? []) found.push(`group ${flip.group} became ${flip.static ? "static" : "dynamic"}`);
  if (view.restarted) found.push("the simulator was restarted");
  if (view.understood) found.push(`understood: ${view.understood}`);
  if (view.focus) found.push(`wrote first: ${view.focus}`);
  return found.map((words) => html("span", { class: "tag" }, words));
}

function ended(end) {
  const words = end.success ? "The task succeeded" : `The task failed (${end.stop})`;
  const expert = end.expert_steps ? `, the demonstration takes ${end.expert_steps}` : "";
  return html("p", { class: end.success ? "end ok" : "end no" }, `${words} after ${end.steps} steps${expert}; ${end.met} of ${end.total} conditions met.`);
}
