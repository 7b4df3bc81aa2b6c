// Timeline of loads and computations, with a lane per layer. A layer cannot begin before its part of the blocks is loaded.

import { absent, bytes, count, html, legend, milliseconds, panel, svg, ticks, widthOf } from "./draw.js";

const LEFT = 34;
const RIGHT = 10;
const BOTTOM = 20;

export function timelinePanel() {
  const { root, body, note } = panel("Load and compute", "ms since the first load or computation");
  const chart = html("div", { class: "chart" });
  const readout = html("p", { class: "readout" });
  const keys = legend([
    ["load", "load"],
    ["attention", "attention"],
    ["importance", "importance"],
    ["mlp", "mlp"],
  ]);
  body.append(chart, readout, keys);
  let width = 0;

  function measure() {
    width = widthOf(chart);
  }

  function show(prompt) {
    const shown = prompt && (prompt.loads.length > 0 || prompt.computes.length > 0);
    readout.hidden = keys.hidden = !shown;
    note.textContent = shown ? summary(prompt) : "";
    readout.textContent = "Point at a bar for its times.";
    chart.replaceChildren(shown ? draw(prompt, width, readout) : absent("The trace holds no times of loads and computations for this step."));
  }

  return { root, show, measure };
}

function summary(prompt) {
  const moved = prompt.loads.reduce((sum, [, , , , size]) => sum + size, 0);
  return `${milliseconds(span(prompt))}; ${count(prompt.loads.length, "load")}, ${bytes(moved)}`;
}

function span(prompt) {
  const ends = [...prompt.loads.map(([, , , end]) => end), ...prompt.computes.map(([, , , end]) => end)];
  return Math.max(...ends, 0.001);
}

function draw(prompt, width, readout) {
  const layers = Math.max(prompt.active_rows.length, ...prompt.loads.map(([, last]) => last), 1);
  const height = Math.max(3, Math.min(12, Math.floor(150 / layers)));
  const total = span(prompt);
  const x = (time) => LEFT + (time * (width - LEFT - RIGHT)) / total;
  const y = (layer) => 4 + layer * height;
  const root = svg("svg", { width, height: layers * height + 4 + BOTTOM, role: "img", "aria-label": "loads and computations over time" });
  root.append(...axes(total, layers, width, x, y, height));
  const bar = (kind, first, last, start, end, words) =>
    root.append(svg("rect", {
      x: x(start), y: y(first) + 0.5, width: Math.max(0.8, x(end) - x(start)), height: (last - first) * height - 1, class: kind,
      onmouseenter: () => { readout.textContent = words; },
    }));
  for (const [first, last, start, end, size] of prompt.loads) {
    const which = last - first === 1 ? `layer ${first}` : `layers ${first} to ${last - 1}`;
    bar("load", first, last, start, end, `load of ${which}: ${times(start, end)}, ${bytes(size)}`);
  }
  for (const [layer, piece, start, end] of prompt.computes) {
    bar(piece, layer, layer + 1, start, end, `${piece} of layer ${layer}: ${times(start, end)}`);
  }
  return root;
}

function times(start, end) {
  return `${start.toFixed(2)} to ${milliseconds(end)} (${milliseconds(end - start)})`;
}

function axes(total, layers, width, x, y, height) {
  const shapes = [];
  for (const time of ticks(total, 6)) {
    shapes.push(svg("path", { d: `M${x(time)} ${y(0)}V${y(layers)}`, class: "tick" }));
    const late = x(time) > width - 40;
    shapes.push(svg("text", { x: x(time), y: y(layers) + 14, "text-anchor": late ? "end" : "middle" }, Number(time.toPrecision(6)).toString()));
  }
  for (const layer of ticks(layers - 1, 5).filter((each) => Number.isInteger(each))) {
    shapes.push(svg("text", { x: LEFT - 6, y: y(layer) + height / 2 + 4, "text-anchor": "end" }, String(layer)));
  }
  const middle = y(layers / 2);
  shapes.push(svg("text", { x: 10, y: middle, class: "axis", transform: `rotate(-90 10 ${middle})`, "text-anchor": "middle" }, "layer"));
  shapes.push(svg("text", { x: LEFT - 6, y: y(layers) + 14, "text-anchor": "end" }, "ms"));
  return shapes;
}
