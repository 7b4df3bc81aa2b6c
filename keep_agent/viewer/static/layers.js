// Panel of the recomputation, layers x prompt rows: one bar per segment, from layer 0 to the last layer that computed it.

import { STATES, absent, count, html, legend, panel, percent, svg, ticks, widthOf } from "./draw.js";

const LEFT = 34;
const RIGHT = 92;
const TOP = 4;
const BOTTOM = 20;

export function layersPanel(events) {
  const { root, body, note } = panel("Recomputation", "layers x rows of the prompt", "layers-panel");
  const chart = html("div", { class: "chart" });
  const readout = html("p", { class: "readout" });
  const keys = legend([
    ["stored", "from memory"],
    ["recomputed", "recomputed"],
    ["changed", "changed"],
    ["fresh", "fresh, query"],
  ]);
  body.append(chart, readout, keys);
  let width = 0;

  function measure() {
    width = widthOf(chart);
  }

  function show(prompt, selected) {
    const shown = prompt && prompt.active_rows.length > 0;
    readout.hidden = keys.hidden = !shown;
    note.textContent = shown ? summary(prompt) : "";
    readout.textContent = "Point at a bar for a layer; click it for the segment's text and its rank over the layers.";
    chart.replaceChildren(
      shown ? draw(prompt, selected, width, events, readout) : absent("This planner has no model: nothing was computed."),
    );
  }

  return { root, show, measure };
}

function summary(prompt) {
  const layers = prompt.active_rows.length;
  const computed = prompt.active_rows.reduce((sum, rows) => sum + rows, 0);
  return `${count(prompt.rows, "row")} x ${count(layers, "layer")}, ${percent(computed / (prompt.rows * layers))} computed`;
}

function draw(prompt, selected, width, events, readout) {
  const layers = prompt.active_rows.length;
  const height = Math.max(4, Math.min(15, Math.floor(180 / layers)));
  const area = { width: width - LEFT - RIGHT, height: layers * height };
  const x = (row) => LEFT + (row * area.width) / prompt.rows;
  const y = (layer) => TOP + layer * height;
  const root = svg("svg", { width, height: area.height + TOP + BOTTOM, role: "img", "aria-label": "computed rows by layer" });
  root.append(...columns(prompt, x, y, layers), ...(height < 6 ? [] : grid(layers, area.width, y)), ...sides(prompt, area.width, x, y, height));
  root.append(...frame(prompt.segments.find((segment) => segment.key === selected), x, y, layers));
  const at = (event) => {
    const box = root.getBoundingClientRect();
    const row = ((event.clientX - box.left - LEFT) / area.width) * prompt.rows;
    const layer = Math.floor((event.clientY - box.top - TOP) / height);
    if (layer < 0 || layer >= layers || row < 0 || row >= prompt.rows) return null;
    return { layer, row: Math.floor(row), segment: prompt.segments.find((segment) => segment.start <= row && row < segment.stop) };
  };
  root.addEventListener("mousemove", (event) => {
    const cell = at(event);
    if (cell) readout.textContent = describe(cell, prompt);
  });
  root.addEventListener("click", (event) => {
    const cell = at(event);
    if (cell?.segment) events.select(cell.segment.key, cell.layer);
  });
  return root;
}

function columns(prompt, x, y, layers) {
  const bar = (start, stop, last, kind, key) =>
    svg("rect", {
      x: x(start), y: y(0), width: Math.max(0.6, x(stop) - x(start) - (x(stop) - x(start) > 3 ? 0.7 : 0)),
      height: y(last + 1) - y(0), class: kind, "data-key": key,
    });
  const shapes = [bar(0, prompt.context, layers - 1, "stored")];
  for (const segment of prompt.segments) {
    shapes.push(bar(segment.start, segment.stop, layers - 1, "stored", segment.key));
    if (segment.last_layer < 0) continue;
    const kind = segment.state === "hit" ? "recomputed" : segment.state;
    shapes.push(bar(segment.start, segment.stop, segment.last_layer, kind, segment.key));
  }
  if (prompt.query < prompt.rows) shapes.push(bar(prompt.query, prompt.rows, layers - 1, "fresh"));
  return shapes;
}

function grid(layers, width, y) {
  const lines = Array.from({ length: layers - 1 }, (_, index) => `M${LEFT} ${y(index + 1)}h${width}`);
  return [svg("path", { d: lines.join(""), class: "gridline" })];
}

function sides(prompt, width, x, y, height) {
  const layers = prompt.active_rows.length;
  const shapes = ticks(layers - 1, 5).filter((layer) => Number.isInteger(layer)).map((layer) =>
    svg("text", { x: LEFT - 6, y: y(layer) + height / 2 + 4, "text-anchor": "end" }, String(layer)),
  );
  const from = LEFT + width + 8;
  const full = RIGHT - 42;
  prompt.active_rows.forEach((rows, layer) => {
    const size = (full * rows) / prompt.rows;
    shapes.push(svg("rect", { x: from, y: y(layer) + 0.5, width: size, height: Math.max(1, height - 1), class: "active" }));
    const changed = layer === 0 || rows !== prompt.active_rows[layer - 1];
    if (changed && height >= 8) shapes.push(svg("text", { x: from + size + 4, y: y(layer) + height / 2 + 4 }, String(rows)));
  });
  const base = y(layers) + 14;
  shapes.push(svg("text", { x: LEFT, y: base }, "memory"));
  shapes.push(svg("text", { x: x(prompt.rows), y: base, "text-anchor": "end" }, "query"));
  shapes.push(svg("text", { x: from, y: base }, "rows computed"));
  shapes.push(svg("text", { x: 10, y: y(layers / 2), class: "axis", transform: `rotate(-90 10 ${y(layers / 2)})`, "text-anchor": "middle" }, "layer"));
  return shapes;
}

function frame(segment, x, y, layers) {
  if (!segment) return [];
  const width = Math.max(2, x(segment.stop) - x(segment.start));
  return [svg("rect", { x: x(segment.start) - 0.5, y: y(0) - 1, width, height: y(layers) - y(0) + 2, class: "frame" })];
}

function describe({ layer, row, segment }, prompt) {
  const active = prompt.active_rows[layer];
  const at = `layer ${layer} computed ${active} of ${count(prompt.rows, "row")}`;
  if (!segment) return `${row < prompt.context ? "context" : row >= prompt.query ? "query" : "memory"}, row ${row}; ${at}`;
  const here = layer <= segment.last_layer ? "computed here" : "from memory here";
  return `${segment.key} (${segment.state}, ${STATES[segment.state].letter}): ${here}; ${at}`;
}
