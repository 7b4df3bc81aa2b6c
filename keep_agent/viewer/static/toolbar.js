// Toolbar: buttons, the step's number, and a switch to follow a growing run.

import { html } from "./draw.js";

export function toolbar({ go, leap, follow }, live) {
  const number = html("input", { type: "number", min: 1, value: 1, "aria-label": "step number", onchange: () => go(Number(number.value) - 1) });
  const of = html("span", {}, "of 0");
  const box = html("input", { type: "checkbox", onchange: () => follow(box.checked) });
  const root = html(
    "div",
    { class: "toolbar" },
    button("|◀", "first step (Home)", () => go(0)),
    button("◀", "one step back (←, with shift 10)", () => leap(-1)),
    button("▶", "one step on (→, with shift 10)", () => leap(1)),
    button("▶|", "last step (End)", () => go(Infinity)),
    html("label", { class: "number" }, "step", number, of),
    live ? html("label", { title: "stay at the last step while the run grows" }, box, "follow") : null,
  );

  function at(step, steps) {
    number.value = steps ? step + 1 : 0;
    number.max = steps;
    of.textContent = `of ${steps}`;
  }

  function following(on) {
    box.checked = on;
  }

  return { root, at, following };
}

function button(sign, title, onclick) {
  return html("button", { class: "chip", title, "aria-label": title, onclick }, sign);
}
