// Memory table: one line per segment, in the prompt's order. Lines are reused from step to step. They have a fixed
// height and are not a <table>, so that the browser lays out only visible lines.

import { STATES, absent, count, html, legend, panel } from "./draw.js";

const HEADINGS = [
  ["", "the segment's state"],
  ["segment", "the segment's id"],
  ["text", "as in the prompt"],
  ["unit", "number of the unit whose keys and values are computed together"],
  ["kind", "static: in a group of unchanged segments; dynamic: a single segment; otherwise the kind of its unit"],
  ["layers", "number of layers that computed one of the segment's rows"],
  ["rank", "best rank by attention mass among the segments that a layer chose"],
];

export function memoryPanel(events) {
  const { root, body, note } = panel("Memory", "segments of the prompt, in its order", "memory-panel");
  const rows = html("div", { role: "rowgroup" });
  const names = HEADINGS.map(([name, title]) => html("span", { title, role: "columnheader" }, name));
  const head = html("div", { class: "head", role: "row" }, ...names);
  const scroller = html("div", { class: "scroller memory", role: "table", tabindex: "-1" }, head, rows);
  const empty = absent("No memory: the trace holds no segments of this step's prompt.");
  const keys = legend(Object.entries(STATES).map(([state, parts]) => [state, state, parts.words]));
  body.append(scroller, keys, empty);
  const lines = [];

  function show(prompt, selected) {
    const segments = prompt?.segments ?? [];
    scroller.hidden = keys.hidden = !segments.length;
    empty.hidden = segments.length > 0;
    note.textContent = prompt ? summary(prompt, segments) : "";
    while (lines.length < segments.length) lines.push(line(rows, events));
    lines.forEach((each, index) => each.show(segments[index], prompt, selected));
  }

  function reveal(key) {
    lines.find((each) => each.key() === key)?.root.scrollIntoView({ block: "nearest" });
  }

  return { root, show, reveal };
}

function summary(prompt, segments) {
  const states = Object.keys(STATES).map((state) => [state, segments.filter((segment) => segment.state === state).length]);
  const parts = states.filter(([, number]) => number).map(([state, number]) => `${number} ${state}`);
  return `${count(segments.length, "segment")}: ${parts.join(", ")}; ${prompt.units_hit} of ${count(prompt.units, "unit")} hit`;
}

function line(parent, events) {
  let key = "";
  const cells = HEADINGS.map(() => html("span", { role: "cell" }));
  const fill = html("i");
  const track = html("span", { class: "track" }, fill);
  const layers = html("span");
  cells[5].append(track, layers);
  const root = html("div", { role: "row", onclick: () => events.select(key) }, ...cells);
  parent.append(root);
  const before = {};

  // Writes a value only if it has changed: the browser does not lay out an unchanged line again.
  function put(name, value, write) {
    if (before[name] === value) return;
    before[name] = value;
    write(value);
  }

  function cell(index, text) {
    put(index, text, () => { cells[index].textContent = text; });
  }

  function show(segment, prompt, selected) {
    put("hidden", !segment, (hidden) => { root.hidden = hidden; });
    if (!segment) return;
    key = segment.key;
    const computed = segment.last_layer + 1;
    put("class", `line ${segment.state}${key === selected ? " selected" : ""}`, (kind) => { root.className = kind; });
    put("title", STATES[segment.state].words, (words) => { root.title = words; });
    cell(0, STATES[segment.state].letter);
    cell(1, key);
    cell(2, segment.text === null ? "(its text is not in the trace)" : segment.text.trim());
    cell(3, unit(segment));
    cell(4, segment.kind);
    cell(6, segment.ranks.length ? String(Math.min(...segment.ranks.map(([, rank]) => rank))) : "");
    put("layers", computed, () => { layers.textContent = computed; });
    put("width", (100 * computed) / prompt.active_rows.length, (share) => { fill.style.width = `${share}%`; });
  }

  return { root, show, key: () => key };
}

export function unit(segment) {
  if (segment.first_unit < 0) return "";
  return segment.first_unit === segment.last_unit
    ? String(segment.first_unit)
    : `${segment.first_unit}–${segment.last_unit}`;
}
