// Path of attention in hops: from the query to segments, and from these to further ones. One edge leads to each chosen segment.

import { absent, count, html, panel, svg, widthOf } from "./draw.js";

const ROW = 26;
const PAD = 10;

export function hopsPanel(events) {
  const { root, body, note } = panel("Multi-hop path", "from the query to segments, one edge to each chosen one");
  const chips = html("div", { class: "chips", role: "group", "aria-label": "layer" });
  const chart = html("div", { class: "chart tall" });
  body.append(chips, chart);
  let width = 0;
  let layer = null;
  let last = [];

  function show(prompt, selected) {
    const hops = (prompt?.hops ?? []).filter((hop) => hop.edges.length);
    const current = hops.find((hop) => hop.layer === layer) ?? hops[0];
    chips.replaceChildren(...hops.map((hop) => chip(hop, hop === current)));
    chips.hidden = !hops.length;
    note.textContent = current ? `layer ${current.layer}: ${count(current.hops, "hop")}, ${count(current.edges.length, "segment")} chosen` : "";
    chart.replaceChildren(current ? draw(current, selected, width, events) : absent(reason(prompt)));
    last = [prompt, selected];
  }

  function chip(hop, pressed) {
    const pick = () => at(hop.layer);
    return html("button", { class: "chip", "aria-pressed": String(pressed), onclick: pick }, `layer ${hop.layer}`);
  }

  function measure() {
    width = widthOf(chart);
  }

  function at(wanted) {
    layer = wanted;
    show(...last);
  }

  return { root, show, at, measure };
}

function reason(prompt) {
  if (!prompt) return "This planner has no model.";
  return "No layer has a path at this step: this method does not choose by hops, or it had no segments to choose from.";
}

function draw(hop, selected, width, events) {
  const places = arrange(hop.edges);
  const columns = Math.max(...[...places.values()].map((place) => place.column)) + 1;
  const rows = Math.max(...[...places.values()].map((place) => place.row)) + 1;
  const step = Math.max((width - 2 * PAD) / columns, 150); // a narrower panel scrolls
  const box = Math.min(step - 56, 190);
  const x = (place) => PAD + place.column * step;
  const y = (place) => PAD + place.row * ROW + ROW / 2;
  const most = Math.max(...hop.edges.map(([, , mass]) => mass), 1e-12);
  const root = svg("svg", { width: Math.max(width, 2 * PAD + (columns - 1) * step + box), height: rows * ROW + 2 * PAD, role: "img", "aria-label": "paths from the query" });
  for (const [source, target, mass] of hop.edges) root.append(edge(places.get(source), places.get(target), mass, most, x, y, box));
  for (const [id, place] of places) root.append(node(id, place, x(place), y(place), box, selected, events));
  return root;
}

// Places the query at the left, its targets in the next column, and so on. Segments that were not chosen are dashed.
function arrange(edges) {
  const places = new Map([["", { column: 0, row: 0, chosen: true }]]);
  const targets = new Set(edges.map(([, target]) => target));
  const next = [1];
  const put = (id, column) => {
    if (places.has(id)) return;
    next[column] = next[column] ?? 0;
    places.set(id, { column, row: next[column]++, chosen: targets.has(id) });
    edges.filter(([source]) => source === id).forEach(([, target]) => put(target, column + 1));
  };
  edges.filter(([source]) => source === "").forEach(([, target]) => put(target, 1));
  edges.filter(([source]) => !targets.has(source)).forEach(([source]) => put(source, 1));
  edges.forEach(([source]) => put(source, 1));
  return places;
}

function edge(from, to, mass, most, x, y, box) {
  const start = x(from) + (from.column === 0 ? 52 : box);
  const [left, right, top, bottom] = [start, x(to), y(from), y(to)];
  const middle = (left + right) / 2;
  const width = 1 + 4 * (mass / most);
  const line = svg("path", { d: `M${left} ${top}C${middle} ${top} ${middle} ${bottom} ${right} ${bottom}`, class: "edge", "stroke-width": width });
  return svg("g", {}, line, svg("text", { x: right - 4, y: bottom - 5, "text-anchor": "end", class: "mass" }, mass.toPrecision(2)));
}

function node(id, place, left, middle, box, selected, events) {
  const kind = `node${id === "" ? " query" : ""}${place.chosen ? "" : " passed"}${id && id === selected ? " selected" : ""}`;
  const width = id === "" ? 52 : box;
  const longest = Math.max(4, Math.floor((width - 12) / 6.6));
  const name = id === "" ? "query" : id.length > longest ? `${id.slice(0, longest - 1)}…` : id;
  const title = id === "" ? "the query's rows" : `${id}${place.chosen ? "" : ": on the path, not chosen itself"}`;
  return svg(
    "g",
    { class: kind, "data-key": id, onclick: () => id && events.select(id) },
    svg("title", {}, title),
    svg("rect", { x: left, y: middle - 10, width, height: 20, rx: 4 }),
    svg("text", { x: left + 7, y: middle + 4 }, name),
  );
}
