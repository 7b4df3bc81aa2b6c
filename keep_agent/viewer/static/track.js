// Slider with marks above it: computed share, failed skills, task borders, differences, groups that became static or dynamic.

import { html, legend, svg, widthOf } from "./draw.js";

const HEIGHT = 34;
const THUMB = 16; // px: width of the slider's thumb, whose centre stops half this width before the ends

export function track(onMove) {
  const marks = svg("svg", { class: "marks", height: HEIGHT, "aria-hidden": "true" });
  const cursor = svg("path", { class: "cursor" });
  const slider = html("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "step", oninput: () => onMove(Number(slider.value)) });
  const keys = html("div");
  const root = html("div", { class: "track-box" }, marks, slider, keys);
  let width = 0;

  const x = (step) => THUMB / 2 + (Number(slider.max) ? (step * (width - THUMB)) / Number(slider.max) : 0);

  function draw(outlines, differing) {
    slider.max = Math.max(outlines.length - 1, differing.at(-1) ?? 0, 0);
    width = widthOf(root);
    marks.setAttribute("width", width);
    marks.replaceChildren(...shapes(outlines, differing, x), cursor);
    keys.replaceChildren(legend(words(outlines, differing)));
    at(Number(slider.value));
  }

  function at(step) {
    slider.value = step;
    cursor.setAttribute("d", `M${x(step)} 0V${HEIGHT}`);
  }

  return { root, draw, at };
}

function shapes(outlines, differing, x) {
  const wide = Math.min(THUMB, Math.max(1, x(1) - x(0) - 1));
  const path = (kind, steps, shape) => svg("path", { class: kind, d: steps.map(shape).join("") });
  const numbered = outlines.map((outline, step) => ({ ...outline, number: step }));
  const pick = (test) => numbered.filter(test).map((outline) => outline.number);
  const bars = numbered.filter((outline) => outline.computed !== null);
  const border = (outline) => outline.number > 0 && outline.task !== outlines[outline.number - 1].task;
  return [
    path("differs", differing, (step) => `M${x(step) - wide / 2 - 0.5} 0h${wide + 1}v${HEIGHT}h${-wide - 1}z`),
    path("computed", bars, (outline) => `M${x(outline.number) - wide / 2} ${HEIGHT}v${-Math.max(1, outline.computed * 22)}h${wide}V${HEIGHT}z`),
    path("border", pick(border), (step) => `M${(x(step) + x(step - 1)) / 2} 0V${HEIGHT}`),
    path("flip", pick((outline) => outline.flips > 0), (step) => `M${x(step)} 8l3 -4l-3 -4l-3 4z`),
    path("failed", pick((outline) => !outline.ok), (step) => `M${x(step) - 3} 1l6 6m0 -6l-6 6`),
  ];
}

function words(outlines, differing) {
  const entries = [];
  if (outlines.some((outline) => outline.computed !== null)) entries.push(["active", "share of rows x layers computed"]);
  if (outlines.some((outline) => !outline.ok)) entries.push(["cross", "✗ skill failed"]);
  if (outlines.some((outline) => outline.flips > 0)) entries.push(["diamond", "◆ a group became static or dynamic"]);
  if (outlines.some((outline, step) => step > 0 && outline.task !== outlines[step - 1].task)) entries.push(["line", "next task"]);
  if (differing.length) entries.push(["differs", "the runs differ"]);
  return entries;
}
