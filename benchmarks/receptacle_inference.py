"""Accuracy of inferring the receptacle that initially holds an object in ALFRED, leaving out one trial at a time.

    python -m benchmarks.receptacle_inference --data PATH/json_2.1.0 [--split train]

The score covers the first pick-up of each object, for which the demonstration names the receptacle. The parent of the
data folder may contain the results of another inference as a reference: receptacles.json and
initial_receptacles_SPLIT.jsonl[.gz]. If so, the command also prints the agreement with the reference.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rich.progress import Progress, track

from envs.alfred.data.mining import Survey, position_of, type_of
from envs.alfred.data.official import OfficialEpisodes
from envs.alfred.data.receptacles import leave_one_out
from envs.alfred.data.survey_cache import load_survey
from envs.alfred.data.trajectories import Corpus, Trajectory
from envs.alfred.objects import PICKUPABLE
from envs.alfred.scene import Item, Position
from keep_agent.errors import KeepError

_SAME = 0.06  # metres; receptacles of one type that are closer to each other are the same
_SOURCES = {"g": "read from the demonstration", "k": "from neighbours", "p": "from positions", "n": "none near"}


def score(survey: Survey, trials: frozenset[str]) -> str:
    """Format the accuracy and the most frequent confusions."""
    pairs = list(leave_one_out(survey, trials))
    if not pairs:
        return "no demonstration contains a pick-up from a receptacle"
    wrong = Counter(
        (type_of(place.fixture), type_of(guess) or "nothing") for place, guess in pairs if place.fixture != guess
    )
    right = len(pairs) - wrong.total()
    types = right + sum(count for (truth, guess), count in wrong.items() if truth == guess)
    lines = [
        f"first pick-ups      {len(pairs)} in {len(trials)} trials, each trial left out in turn",
        f"id accuracy         {right / len(pairs):.2%}",
        f"type accuracy       {types / len(pairs):.2%}",
        *(f"  {truth:>18} taken for {guess:<14} {count}" for (truth, guess), count in wrong.most_common(10)),
    ]
    return "\n".join(lines)


def agreement(folder: Path, split: str, trajectories: list[Trajectory], survey: Survey) -> str:
    """Format how often both inferences name the same receptacle, by the reference's source; "" without a reference."""
    places, lines = _read(folder / "receptacles.json"), _lines(folder, split)
    if places is None or not lines:
        return ""
    episodes = OfficialEpisodes([(trajectory, 0) for trajectory in trajectories], survey)
    total: Counter[str] = Counter()
    same: Counter[str] = Counter()
    for trajectory, episode in zip(trajectories, track(episodes, "comparing with the reference"), strict=True):
        line = lines.get(trajectory.name)
        if line is None:
            continue
        things = {item.id: item for item in episode.scene.items}
        for item, index, source in zip(_objects(episode.scene.items), line["receptacle"], line["source"], strict=True):
            reference = places[trajectory.floor_plan][index] if index >= 0 else None
            total[source] += 1
            same[source] += _agree(item, things, reference)
    rows = [f"  {_SOURCES.get(key, key):<28} {same[key] / total[key]:.2%} of {total[key]}" for key in sorted(total)]
    return "\n".join([f"same as the reference {same.total() / total.total():.2%} of {total.total()} objects", *rows])


def _objects(items: tuple[Item, ...]) -> list[Item]:
    """Return the objects that can be picked up, in the order of the official poses."""
    return [item for item in items if item.type in PICKUPABLE]


def _agree(item: Item, things: dict[str, Item], reference: dict[str, Any] | None) -> bool:
    if item.parent is None or reference is None:
        return item.parent is None and reference is None
    parent = things[item.parent]
    positions = position_of(reference["id"]), tuple(reference["position"])
    return parent.type == reference["type"] and _near(parent.position, *positions)


def _near(position: Position, *candidates: Position) -> bool:
    return any(max(abs(a - b) for a, b in zip(position, point, strict=True)) < _SAME for point in candidates)


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes()) if path.is_file() else None


def _lines(folder: Path, split: str) -> dict[str, dict[str, Any]]:
    name, lines = f"initial_receptacles_{split}.jsonl", {}
    for path, opener in ((folder / name, open), (folder / f"{name}.gz", gzip.open)):
        if path.is_file():
            with opener(path, "rt", encoding="utf-8") as file:
                lines |= {line["task"]: line for line in map(json.loads, file)}
    return lines


def main() -> int:
    """Print the results; return 1, with one line on standard error, if the data cannot be read."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", required=True, help="ALFRED's folder json_2.1.0")
    parser.add_argument("--split", default="train", help="split to score (default: train)")
    arguments = parser.parse_args()
    try:
        corpus = Corpus(arguments.data)
        trajectories = corpus.trajectories(arguments.split)
        with Progress(transient=True) as bar:
            reading = bar.add_task("reading demonstrations", total=None)
            survey = load_survey(corpus, lambda: bar.advance(reading))
        print(score(survey, frozenset(trajectory.trial for trajectory in trajectories)))
        print(agreement(corpus.root.parent, arguments.split, trajectories, survey))
    except KeepError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
