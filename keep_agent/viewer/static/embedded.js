// Player of an exported file, which holds its steps and needs no server.

import { play } from "./player.js";

async function unpack(id) {
  const raw = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).json();
}

export async function playEmbedded(root, id) {
  const content = await unpack(id);
  const steps = content.steps.map((text) => () => JSON.parse(text));
  const source = {
    label: content.label,
    overview: async (since) => ({ ...content.overview, outlines: content.overview.outlines.slice(since) }),
    step: async (number) => steps[number](),
    picture: (number) => content.pictures[number],
  };
  const hash = new URLSearchParams(location.hash.slice(1));
  const onMove = (step, segment) => history.replaceState(null, "", `#${new URLSearchParams(segment ? { step, segment } : { step })}`);
  return play(root, [source], { step: Number(hash.get("step") ?? 0), segment: hash.get("segment") ?? "", onMove });
}
