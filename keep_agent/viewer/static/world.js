// The world: a picture where the run has one, and what lies where, as far as the agent was told.

import { absent, count, html, panel } from "./draw.js";

export function worldPanel(source) {
  const { root, body, note } = panel("World", "as far as the agent was told by this step");
  const pictures = html("div", { class: "pictures" });
  const agent = html("p", { class: "agent" });
  const tree = html("ul", { class: "tree" });
  const empty = absent("Nothing was told of the world yet.");
  body.append(pictures, agent, tree, empty);
  const shown = []; // what each line says, as JSON

  // Draws only lines that say something else than before.
  function refill(lines) {
    while (tree.children.length > lines.length) tree.lastChild.remove();
    shown.length = Math.min(shown.length, lines.length);
    lines.forEach((told, index) => {
      const said = JSON.stringify(told);
      if (shown[index] === said) return;
      shown[index] = said;
      if (tree.children[index]) tree.children[index].replaceWith(line(told));
      else tree.append(line(told));
    });
  }

  function show(view) {
    const { things, agent: place, holds } = view.world;
    note.textContent = things.length ? `${count(things.length, "thing")}, ${things.filter((one) => one.told === view.number).length} told now` : "";
    pictures.hidden = view.before === null && view.after === null;
    pictures.replaceChildren(
      ...[["before", view.before], ["after", view.after]].filter(([, number]) => number !== null)
        .map(([when, number]) => picture(source.picture(number), `${when} the skill`)),
    );
    const where = place ? `at ${place}` : "somewhere nobody told";
    agent.replaceChildren(html("b", {}, "agent "), `${where}, holds ${holds.length ? holds.join(", ") : "nothing"}`);
    empty.hidden = things.length > 0;
    refill(things.map((one) => described(one, view)));
  }

  return { root, show };
}

function picture(url, words) {
  const image = html("img", { src: url, alt: words });
  image.addEventListener("error", () => image.replaceWith(absent("The trace names a picture that is not there.")));
  return html("figure", {}, image, html("figcaption", {}, words));
}

function described(thing, view) {
  const here = thing.id === view.world.agent;
  const kind = `${thing.category || "named"}${thing.told === view.number ? " told" : ""}${here ? " here" : ""}`;
  const marks = thing.states.map((state) => ["state", state]);
  if (thing.seen) marks.push(["state seen", "in view"]);
  if (here) marks.push(["state at", "agent"]);
  const title = thing.told < 0 ? "only named as a place" : `told at step ${thing.told + 1}`;
  return { id: thing.id, depth: thing.depth, kind, marks, title };
}

function line({ id, depth, kind, marks, title }) {
  const drawn = marks.map(([of, words]) => html("span", { class: of }, words));
  return html("li", { class: kind, style: `padding-left:${4 + 14 * depth}px`, title }, html("span", {}, id), ...drawn);
}
