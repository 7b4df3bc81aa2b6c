// Entry of the served pages: the player, and its source of steps.

export { play } from "./player.js";

// Source of steps that a server reads from a run folder. `base`: address of its data routes, without a final slash.
export function remote(base, run, episode, label) {
  const address = (route, rest) => `${base}/${route}?${new URLSearchParams({ run, episode, ...rest })}`;
  return {
    label,
    overview: (since) => get(address("episode", { since })),
    step: (number) => get(address("step", { step: number })),
    picture: (number) => address("picture", { step: number }),
  };
}

async function get(address) {
  const answer = await fetch(address);
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.detail ?? `the server answered ${answer.status}`);
  return content;
}
