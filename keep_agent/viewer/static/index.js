// What pages import: the player, and where its steps come from.

export { play } from "./player.js";

// Steps that a server reads from a run folder. `base` is the address of its data, without a slash at the end.
export function remote(base, run, episode, label) {
  const address = (what, rest) => `${base}/${what}?${new URLSearchParams({ run, episode, ...rest })}`;
  return {
    label,
    overview: (since) => asked(address("episode", { since })),
    step: (number) => asked(address("step", { step: number })),
    picture: (number) => address("picture", { step: number }),
  };
}

async function asked(address) {
  const answer = await fetch(address);
  const told = await answer.json();
  if (!answer.ok) throw new Error(told.detail ?? `the server answered ${answer.status}`);
  return told;
}
