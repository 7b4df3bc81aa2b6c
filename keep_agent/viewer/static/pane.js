// Pane of one run: a summary of the step on top, its panels below. Panels are refilled, never rebuilt.

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
  const notice = html("div", { class: "gone" });
  const grid = html(
    "div",
    { class: "grid" },
    html("div", { class: "left" }, memory.root, detail.root),
    html("div", { class: "middle" }, layers.root, hops.root, timeline.root),
    html("div", { class: "right" }, scores.root, times.root, world.root),
  );
  const root = html("article", { class: "pane" }, html("h1", {}, source.label), head, notice, grid);

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
    notice.replaceChildren();
    grid.hidden = head.hidden = false;
    head.replaceChildren(...heading(view));
    grid.classList.toggle("plain", !view.prompt);
    detail.root.hidden = !view.prompt;
    [layers, hops, timeline].forEach((panel) => panel.measure()); // before any is drawn, so that the browser lays out only once
    drawSelection();
    timeline.show(view.prompt);
    times.show(view.prompt);
    scores.show(view);
    world.show(view);
  }

  function showMessage(words) {
    state.view = null;
    grid.hidden = head.hidden = true;
    notice.replaceChildren(absent(words));
  }

  function differs(isDifferent) {
    root.classList.toggle("differs", isDifferent);
  }

  function redraw() {
    if (state.view) show(state.view);
  }

  function preset(key) {
    state.selected = key;
  }

  return { root, show, showMessage, redraw, preset, differs, reveal: () => memory.reveal(state.selected) };
}

function heading(view) {
  const result = html("span", { class: view.ok ? "result ok" : "result no" }, view.ok ? "✓ done" : "✗ failed");
  const action = html("p", { class: "action" }, html("b", {}, view.skill), result, html("span", { class: "message" }, view.message));
  const instruction = html("p", { class: "instruction" }, view.instruction);
  const summary = html("p", { class: "tags" }, goal(view.goal), ...tags(view));
  const elements = [html("div", { class: "said" }, instruction, action), summary];
  if (view.end) elements.push(outcome(view.end));
  if (view.crash) elements.push(html("details", { class: "crash" }, html("summary", {}, "The episode crashed after this step"), html("pre", {}, view.crash)));
  return elements;
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
  const elements = [`task ${view.task + 1}, its step ${view.step + 1}`];
  if (view.prompt?.cold) elements.push("cold: first prompt after a reset");
  for (const flip of view.prompt?.flips ?? []) elements.push(`group ${flip.group} became ${flip.static ? "static" : "dynamic"}`);
  if (view.restarted) elements.push("the simulator was restarted");
  if (view.understood) elements.push(`understood: ${view.understood}`);
  if (view.focus) elements.push(`focus: ${view.focus}`);
  return elements.map((words) => html("span", { class: "tag" }, words));
}

function outcome(end) {
  const words = end.success ? "The task succeeded" : `The task failed (${end.stop})`;
  const expert = end.expert_steps ? `, the demonstration takes ${end.expert_steps}` : "";
  return html("p", { class: end.success ? "end ok" : "end no" }, `${words} after ${end.steps} steps${expert}; ${end.met} of ${end.total} conditions met.`);
}
