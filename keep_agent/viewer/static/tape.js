// What is known of one source: outlines of all its steps, and the steps looked at lately.

const KEPT = 80; // steps

export function tape(source) {
  const known = new Map();
  const self = { outlines: [], problem: "", status: "", crash: "", look, view, prefetch, has };

  // Asks for what is new. Did anything change?
  async function look() {
    try {
      return take(await source.overview(self.outlines.length));
    } catch (error) {
      const changed = self.problem !== error.message;
      self.problem = error.message;
      return changed;
    }
  }

  function take(told) {
    if (told.steps < self.outlines.length) return restart(); // the file was replaced
    const changed = told.outlines.length > 0 || told.problem !== self.problem || told.status !== self.status;
    if (changed) known.delete(self.outlines.length - 1); // it may tell of the end now
    self.outlines.push(...told.outlines);
    [self.problem, self.status, self.crash] = [told.problem, told.status, told.crash];
    return changed;
  }

  async function restart() {
    known.clear();
    self.outlines = [];
    await look();
    return true;
  }

  function has(step) {
    return known.has(step);
  }

  // A step to show, or why there is none, as { words }.
  function view(step) {
    if (step >= self.outlines.length) return Promise.resolve({ words: ended() });
    if (!known.has(step)) known.set(step, source.step(step).catch((error) => failed(step, error)));
    if (known.size > KEPT) known.delete(known.keys().next().value);
    return known.get(step);
  }

  function failed(step, error) {
    known.delete(step);
    return { words: error.message };
  }

  function ended() {
    if (self.outlines.length) return `This episode has only ${self.outlines.length} steps.`;
    return self.crash ? `No step was taken: the episode crashed.\n${self.crash}` : "No step was taken yet.";
  }

  function prefetch(step) {
    if (step >= 0 && step < self.outlines.length) view(step);
  }

  return self;
}

// Steps where two runs did not choose alike or it did not go alike, or where only one of them goes on.
export function differing(tapes) {
  if (tapes.length < 2) return [];
  const [one, other] = tapes.map((each) => each.outlines);
  const steps = Array.from({ length: Math.max(one.length, other.length) }, (_, step) => step);
  return steps.filter((step) => one[step]?.skill !== other[step]?.skill || one[step]?.ok !== other[step]?.ok);
}
