// Cache of one episode: outlines of all its steps, and the data of recently shown steps.

const KEPT = 80; // maximum number of steps whose data is cached

export function tape(source) {
  const known = new Map();
  const self = { outlines: [], problem: "", status: "", crash: "", look, view, prefetch, has };

  // Reads new outlines; returns whether anything changed.
  async function look() {
    try {
      return take(await source.overview(self.outlines.length));
    } catch (error) {
      const changed = self.problem !== error.message;
      self.problem = error.message;
      return changed;
    }
  }

  function take(update) {
    if (update.steps < self.outlines.length) return restart(); // the file was replaced
    const changed = update.outlines.length > 0 || update.problem !== self.problem || update.status !== self.status;
    if (changed) known.delete(self.outlines.length - 1); // the last step's data may contain the task's outcome now
    self.outlines.push(...update.outlines);
    [self.problem, self.status, self.crash] = [update.problem, update.status, update.crash];
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

  // Returns a step, or the reason why there is none as { words }.
  function view(step) {
    if (step >= self.outlines.length) return Promise.resolve({ words: reason() });
    if (!known.has(step)) known.set(step, source.step(step).catch((error) => forget(step, error)));
    if (known.size > KEPT) known.delete(known.keys().next().value);
    return known.get(step);
  }

  function forget(step, error) {
    known.delete(step);
    return { words: error.message };
  }

  function reason() {
    if (self.outlines.length) return `This episode has only ${self.outlines.length} steps.`;
    return self.crash ? `No step was taken: the episode crashed.\n${self.crash}` : "No step was taken yet.";
  }

  function prefetch(step) {
    if (step >= 0 && step < self.outlines.length) view(step);
  }

  return self;
}

// Returns the steps where two runs differ in skill or outcome, or that only one of them has.
export function differing(tapes) {
  if (tapes.length < 2) return [];
  const [first, second] = tapes.map((each) => each.outlines);
  const steps = Array.from({ length: Math.max(first.length, second.length) }, (_, step) => step);
  return steps.filter((step) => first[step]?.skill !== second[step]?.skill || first[step]?.ok !== second[step]?.ok);
}
