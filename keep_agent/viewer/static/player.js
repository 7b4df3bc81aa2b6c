// Player: moves through the steps of one or two episodes by slider, keys and URL, and follows a growing run.

import { html, widthOf } from "./draw.js";
import { pane } from "./pane.js";
import { differing, tape } from "./tape.js";
import { toolbar } from "./toolbar.js";
import { track } from "./track.js";

const POLL = 1000; // ms
const SETTLED = 120; // ms without a move until the URL is updated
const LEAP = 10; // steps, with shift

// sources: { label, overview(since), step(number), picture(number) }; picture returns a URL.
// options: step, segment, live, onMove(step, segment). Dispatches "keep-step" on the root when a step is drawn.
export function play(root, sources, options) {
  return new Player(root, sources, options);
}

class Player {
  constructor(root, sources, options) {
    this.root = root;
    this.options = options;
    this.step = options.step ?? 0;
    this.segment = options.segment ?? "";
    this.move = 0; // number of the last move: data loaded for earlier moves is dropped
    this.following = this.stopped = false;
    this.tapes = sources.map(tape);
    this.panes = sources.map((source) => pane(source, (key) => this.selected(key)));
    this.build();
    this.ready = this.begin();
  }

  build() {
    const go = (step) => this.go(step);
    this.bar = track(go);
    this.tools = toolbar({ go, leap: (steps) => go(this.step + steps), follow: (on) => this.follow(on) }, this.options.live);
    this.problem = html("p", { class: "problem", role: "alert", hidden: true });
    const stage = html("main", { class: this.panes.length > 1 ? "panes two" : "panes" }, ...this.panes.map((item) => item.root));
    this.root.classList.add("keep-viewer");
    this.root.replaceChildren(html("nav", { class: "player" }, this.tools.root, this.bar.root), this.problem, stage);
    this.panes.forEach((item) => item.preset(this.segment));
    this.onKey = (event) => this.key(event);
    document.addEventListener("keydown", this.onKey);
    this.width = widthOf(this.bar.root);
    this.sized = new ResizeObserver(() => this.resized());
    this.sized.observe(this.bar.root);
  }

  async begin() {
    await Promise.all(this.tapes.map((item) => item.look()));
    this.drawTrack();
    await this.go(this.step);
    this.panes.forEach((item) => item.reveal());
    this.watch();
  }

  get count() {
    return Math.max(...this.tapes.map((item) => item.outlines.length));
  }

  async go(wanted) {
    this.step = Math.min(Math.max(wanted || 0, 0), Math.max(this.count - 1, 0));
    if (this.step < this.count - 1) this.tools.following((this.following = false));
    this.bar.at(this.step);
    this.tools.at(this.step, this.count);
    const mine = ++this.move;
    const views = await Promise.all(this.tapes.map((item) => item.view(this.step)));
    if (mine !== this.move || this.stopped) return; // a later move has begun
    views.forEach((view, index) => (view.words ? this.panes[index].showMessage(view.words) : this.panes[index].show(view)));
    this.mark(views);
    this.drawn = this.step;
    this.moved();
    this.root.dispatchEvent(new CustomEvent("keep-step", { detail: this.step }));
    requestAnimationFrame(() => setTimeout(() => this.prefetch(mine))); // after the frame that shows this step
  }

  prefetch(mine) {
    if (mine !== this.move || this.stopped) return;
    this.tapes.forEach((item) => [this.step + 1, this.step - 1].forEach(item.prefetch));
  }

  // Updates the URL to the drawn step, after a pause, since browsers reject frequent changes.
  moved() {
    clearTimeout(this.telling);
    this.telling = setTimeout(() => this.options.onMove?.(this.drawn, this.segment), SETTLED);
  }

  // Marks the panes where two runs differ.
  mark([first, second]) {
    const isDifferent = second !== undefined && (first.skill !== second.skill || first.ok !== second.ok);
    this.panes.forEach((each) => each.differs(isDifferent));
  }

  selected(key) {
    this.segment = key;
    this.moved();
  }

  follow(on) {
    this.following = on;
    if (on) this.go(this.count - 1);
  }

  drawTrack() {
    const longest = this.tapes.reduce((first, second) => (second.outlines.length > first.outlines.length ? second : first));
    this.bar.draw(longest.outlines, differing(this.tapes));
    this.tools.at(this.step, this.count);
    const problems = this.tapes.map((item) => item.problem).filter(Boolean);
    this.problem.hidden = !problems.length;
    this.problem.textContent = problems.join(" ");
  }

  async watch() {
    while (this.options.live && !this.stopped) {
      await new Promise((resolve) => setTimeout(resolve, POLL));
      if (!document.hidden && !this.stopped) await this.look();
    }
  }

  async look() {
    const changed = (await Promise.all(this.tapes.map((item) => item.look()))).some(Boolean);
    if (!changed || this.stopped) return;
    this.drawTrack();
    if (this.following) await this.go(this.count - 1);
    else if (this.tapes.some((item) => !item.has(this.step))) await this.go(this.step);
  }

  key(event) {
    const typing = event.target.matches?.("input:not([type=range], [type=checkbox]), textarea, select");
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? LEAP : 1;
    const wanted = { ArrowLeft: this.step - far, ArrowRight: this.step + far, Home: 0, End: this.count - 1 }[event.key];
    if (wanted === undefined) return;
    event.preventDefault();
    this.go(wanted);
  }

  // Redraws only if the width has changed: replacing an element under the pointer loses a click.
  resized() {
    const width = widthOf(this.bar.root);
    if (width === this.width) return;
    this.width = width;
    this.drawTrack();
    this.panes.forEach((item) => item.redraw());
  }

  stop() {
    this.stopped = true;
    clearTimeout(this.telling);
    this.sized.disconnect();
    document.removeEventListener("keydown", this.onKey);
  }
}
