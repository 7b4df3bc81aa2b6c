// Panel of the selected segment: text, unit (part encoded as a whole), block, and rank at every layer that chose it.

import { STATES, absent, count, html, panel, svg, ticks, widthOf } from "./draw.js";
import { unit } from "./memory.js";

const LEFT = 42;

export function detailPanel(events) {
  const { root, body, note } = panel("Selected segment", "", "detail-panel");

  function show(prompt, key) {
    const segment = prompt?.segments.find((segment) => segment.key === key);
    note.textContent = segment ? "" : key ? "not in this prompt" : "";
    if (!segment) {
      body.replaceChildren(absent(key ? `${key} is not in this step's prompt.` : "Select a bar, a line of the table or a node of the path."));
      return;
    }
    const close = html("button", { class: "chip", onclick: () => events.select("") }, "close");
    const text = segment.text === null ? absent("Its text is not in the trace.") : html("pre", {}, segment.text);
    const facts = html("dl", {}, ...describe(segment, prompt).flatMap(([name, value]) => [html("dt", {}, name), html("dd", {}, value)]));
    const head = html("p", { class: "picked" }, html("i", { class: `swatch ${segment.state}` }), html("b", {}, segment.key), close);
    const chart = html("div", { class: "chart" });
    body.replaceChildren(html("div", { class: "split" }, html("div", {}, head, text, facts), chart));
    chart.append(segment.ranks.length ? ranks(segment, prompt.active_rows.length, widthOf(chart, 200)) : absent("No layer chose it by attention mass."));
  }

  return { root, show };
}

function describe(segment, prompt) {
  const rows = segment.stop - segment.start;
  const computed = segment.last_layer < 0 ? "at no layer" : `layers 0 to ${segment.last_layer} of ${prompt.active_rows.length}`;
  return [
    ["state", STATES[segment.state].words],
    ["rows", `${segment.start} to ${segment.stop - 1} (${count(rows, "token")}), ${segment.from_block} from blocks`],
    ["computed", computed],
    ["unit", segment.first_unit < 0 ? "none" : `${unit(segment)}, ${segment.kind}${segment.block ? `, block ${segment.block}` : ""}`],
    ["written", segment.written < 0 ? "unknown" : `at step ${segment.written + 1}, ${count(segment.versions, "text")} so far`],
  ];
}

// Draws rank 1 on top. A layer that did not choose the segment has no point.
function ranks(segment, layers, width) {
  const height = 130;
  const worst = Math.max(3, ...segment.ranks.map(([, rank]) => rank));
  const x = (layer) => LEFT + ((layer + 0.5) * (width - LEFT - 12)) / layers;
  const y = (rank) => 22 + ((rank - 1) * (height - 50)) / (worst - 1);
  const root = svg("svg", { width, height, role: "img", "aria-label": "rank over the layers" });
  root.append(svg("text", { x: 0, y: 11 }, "rank by attention mass received"));
  for (const rank of ticks(worst - 1, 4).filter(Number.isInteger).map((each) => each + 1)) {
    root.append(svg("path", { d: `M${LEFT} ${y(rank)}H${width - 8}`, class: "tick" }));
    root.append(svg("text", { x: LEFT - 6, y: y(rank) + 4, "text-anchor": "end" }, String(rank)));
  }
  for (const layer of ticks(layers - 1, 5).filter(Number.isInteger)) {
    root.append(svg("text", { x: x(layer), y: height - 4, "text-anchor": "middle" }, String(layer)));
  }
  root.append(svg("text", { x: LEFT - 6, y: height - 4, "text-anchor": "end" }, "layer"));
  root.append(svg("polyline", { points: segment.ranks.map(([layer, rank]) => `${x(layer)},${y(rank)}`).join(" "), class: "ranks" }));
  for (const [layer, rank, mass] of segment.ranks) {
    const dot = svg("circle", { cx: x(layer), cy: y(rank), r: 4.5, class: "rank" });
    dot.append(svg("title", {}, `layer ${layer}: rank ${rank}, mass ${mass}`));
    root.append(dot);
  }
  return root;
}
