// Panel of the known world: pictures, if the run has any, and the tree of things (objects and receptacles).

import { absent, count, html, panel } from "./draw.js";

export function worldPanel(source) {
  const { root, body, note } = panel("World", "the facts that the agent had received by this step");
  const pictures = html("div", { class: "pictures" });
  const agent = html("p", { class: "agent" });
  const tree = html("ul", { class: "tree" });
  const empty = absent("The agent has received no facts yet.");
  body.append(pictures, agent, tree, empty);
  const shown = []; // data of each line, as JSON

  // Draws only lines that have changed.
  function refill(lines) {
    while (tree.children.length > lines.length) tree.lastChild.remove();
    shown.length = Math.min(shown.length, lines.length);
    lines.forEach((data, index) => {
      const json = JSON.stringify(data);
      if (shown[index] === json) return;
      shown[index] = json;
      if (tree.children[index]) tree.children[index].replaceWith(line(data));
      else tree.append(line(data));
    });
  }

  function show(view) {
    const { things, agent: place, holds } = view.world;
    note.textContent = things.length ? `${count(things.length, "thing")}, ${things.filter((thing) => thing.step === view.number).length} new` : "";
    pictures.hidden = view.before === null && view.after === null;
    pictures.replaceChildren(
      ...[["before", view.before], ["after", view.after]].filter(([, number]) => number !== null)
        .map(([when, number]) => picture(source.picture(number), `${when} the skill`)),
    );
    const location = place ? `at ${place}` : "at an unknown place";
    agent.replaceChildren(html("b", {}, "agent "), `${location}, holds ${holds.length ? holds.join(", ") : "nothing"}`);
    empty.hidden = things.length > 0;
    refill(things.map((thing) => describe(thing, view)));
  }

  return { root, show };
}

function picture(url, words) {
  const image = html("img", { src: url, alt: words });
  image.addEventListener("error", () => image.replaceWith(absent("The trace names a missing picture.")));
  return html("figure", {}, image, html("figcaption", {}, words));
}

function describe(thing, view) {
  const here = thing.id === view.world.agent;
  const kind = `${thing.category || "named"}${thing.step === view.number ? " told" : ""}${here ? " here" : ""}`;
  const marks = thing.states.map((state) => ["state", state]);
  if (thing.visible) marks.push(["state seen", "in view"]);
  if (here) marks.push(["state at", "agent"]);
  const title = thing.step < 0 ? "only named as a place" : `last fact at step ${thing.step + 1}`;
  return { id: thing.id, depth: thing.depth, kind, marks, title };
}

function line({ id, depth, kind, marks, title }) {
  const drawn = marks.map(([of, words]) => html("span", { class: of }, words));
  return html("li", { class: kind, style: `padding-left:${4 + 14 * depth}px`, title }, html("span", {}, id), ...drawn);
}
