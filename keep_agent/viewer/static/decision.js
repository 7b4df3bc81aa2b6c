// Panels of a decision: the scored candidates, and the parts of the time that it took.

import { absent, html, legend, milliseconds, panel } from "./draw.js";

const PARTS = ["update", "embed", "encode", "retrieve", "ask", "load", "prefill", "score"];

export function scoresPanel() {
  const { root, body, note } = panel("Candidates", "the skills with the best scores; bars are relative to the best");

  function show(view) {
    note.textContent = view.scores.length ? "log-likelihood" : "";
    const best = Math.max(...view.scores.map(([, score]) => score));
    const lines = view.scores.map(([skill, score]) => scored(skill, score, best, skill === view.skill));
    body.replaceChildren(
      lines.length ? html("table", { class: "scores" }, html("tbody", {}, ...lines)) : absent("This planner scores no candidates."),
    );
  }

  return { root, show };
}

function scored(skill, score, best, chosen) {
  const bar = html("i", { style: `width:${(100 * Math.exp(score - best)).toFixed(2)}%` });
  const name = html("td", { class: chosen ? "name chosen" : "name", title: skill }, chosen ? `▸ ${skill}` : skill);
  return html("tr", {}, name, html("td", { class: "bar" }, html("span", { class: "track" }, bar)), html("td", { class: "number" }, score.toFixed(2).replace("-0.00", "0.00")));
}

export function timesPanel() {
  const { root, body, note } = panel("Time to decide", "from the observation to the chosen skill");

  function show(prompt) {
    if (!prompt) {
      note.textContent = "";
      body.replaceChildren(absent("This planner has no model: there are no times."));
      return;
    }
    note.textContent = `to the first token ${milliseconds(prompt.ttft_ms)}`;
    const parts = [...prompt.parts, ["score", prompt.score_ms]].filter(([, time]) => time > 0);
    const total = parts.reduce((sum, [, time]) => sum + time, 0) || 1;
    const bars = parts.map(([part, time]) =>
      html("i", { class: part, style: `width:${((100 * time) / total).toFixed(2)}%`, title: `${part}: ${milliseconds(time)}` }),
    );
    const words = parts.map(([part, time]) => [part, `${part} ${milliseconds(time)}`]);
    words.sort(([first], [second]) => PARTS.indexOf(first) - PARTS.indexOf(second));
    body.replaceChildren(html("div", { class: "parts" }, ...bars), legend(words));
  }

  return { root, show };
}
