// Elements and number formats. Texts become text nodes only, so that no text of a trace is parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

export function html(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function panel(title, hint = "", kind = "") {
  const note = html("span", { class: "note" });
  const body = html("div", { class: "body" });
  const root = html("section", { class: `panel ${kind}` }, html("h2", { title: hint }, title, note), body);
  return { root, body, note };
}

export function absent(text) {
  return html("p", { class: "absent" }, text);
}

export function milliseconds(value) {
  return `${value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)} ms`;
}

export function bytes(value) {
  if (value < 1024) return `${value} B`;
  return value < 1048576 ? `${(value / 1024).toFixed(0)} KiB` : `${(value / 1048576).toFixed(1)} MiB`;
}

export function count(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

export function percent(share) {
  return `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;
}

// Returns about `wanted` ticks over `span`, at round steps (1, 2, 5, 10, ...).
export function ticks(span, wanted) {
  const rough = Math.max(span / wanted, 1e-9);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  return Array.from({ length: Math.floor(span / step + 1e-9) + 1 }, (_, index) => index * step);
}

// Returns the drawing width of a panel in px, at least `least`.
export function widthOf(element, least = 260) {
  return Math.max(least, Math.floor(element.clientWidth));
}

export const STATES = {
  hit: { letter: "H", words: "hit: served from a stored block" },
  recomputed: { letter: "R", words: "recomputed: served from a stored block, and computed again in the first layers" },
  changed: { letter: "C", words: "changed: its text has changed, so its block is new" },
  fresh: { letter: "F", words: "fresh: no stored block could be used" },
};

export function legend(entries) {
  const items = entries.map(([kind, words, title]) =>
    html("span", { class: "key", title }, html("i", { class: `swatch ${kind}` }), words),
  );
  return html("div", { class: "legend" }, ...items);
}
