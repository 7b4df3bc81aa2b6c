// NiceGUI element of the player.

import { play, remote } from "keep-viewer";

export default {
  template: "<div></div>",
  props: { base: String, sources: Array, step: Number, segment: String },
  mounted() {
    const sources = this.sources.map(({ run, episode, label }) => remote(this.base, run, episode, label));
    const onMove = (step, segment) => {
      const query = new URLSearchParams(location.search);
      query.set("step", step);
      if (segment) query.set("segment", segment);
      else query.delete("segment");
      history.replaceState(history.state, "", `?${query}`);
    };
    this.player = play(this.$el, sources, { step: this.step, segment: this.segment, live: true, onMove });
  },
  unmounted() {
    this.player.stop();
  },
};
