// The world: a picture where the run has one, and what lies where, as far as the agent was told.

import { absent, count, html, panel } from "./draw.js";

export function worldPanel(source) {
  const { root, body, note } = panel("World", "as far as the agent was told by this step");
  const pictures = html("div", { class: "pictures" });
  const agent = html("p", { class: "agent" });
  const tree = html("ul", { class: "tree" });
  body.append(pictures, agent, tree);

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
    tree.replaceChildren(...(things.length ? things.map((one) => line(one, view)) : [absent("Nothing was told of the world yet.")]));
  }

  return { root, show };
}

function picture(url, words) {
  const image = html("img", { src: url, alt: words });
  image.addEventListener("error", () => image.replaceWith(absent("The trace names a picture that is not there.")));
  return html("figure", {}, image, html("figcaption", {}, words));
}

function line(thing, view) {
  const here = thing.id === view.world.agent;
  const kind = `${thing.category || "named"}${thing.told === view.number ? " told" : ""}${here ? " here" : ""}`;
  const marks = thing.states.map((state) => html("span", { class: "state" }, state));
  if (thing.seen) marks.push(html("span", { class: "state seen", title: "the agent sees it now" }, "in view"));
  if (here) marks.push(html("span", { class: "state at" }, "agent"));
  const title = thing.told < 0 ? "only named as a place" : `told at step ${thing.told + 1}`;
  return html("li", { class: kind, style: `padding-left:${4 + 14 * thing.depth}px`, title }, html("span", {}, thing.id), ...marks);
}
