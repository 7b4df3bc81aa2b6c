// A file that holds its steps itself: read without a server.

import { play } from "./player.js";

async function unpacked(id) {
  const raw = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

export async function playEmbedded(root, id) {
  const told = await unpacked(id);
  const steps = told.steps.map((text) => () => JSON.parse(text));
  const source = {
    label: told.label,
    overview: async (since) => ({ ...told.overview, outlines: told.overview.outlines.slice(since) }),
    step: async (number) => steps[number](),
    picture: (number) => told.pictures[number],
  };
  const given = new URLSearchParams(location.hash.slice(1));
  const onMove = (step, segment) => history.replaceState(null, "", `#${new URLSearchParams(segment ? { step, segment } : { step })}`);
  return play(root, [source], { step: Number(given.get("step") ?? 0), segment: given.get("segment") ?? "", onMove });
}
