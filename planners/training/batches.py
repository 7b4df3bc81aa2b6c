"""Endless batches of packs (a memory and query slots) from rollout files, and the curriculum of rising difficulty.

Batches are made from *windows*: a window is a set of packs of one kind.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from keep_agent.errors import ConfigError
from planners.prompts.text import TYPE_LEVEL
from planners.training.lessons import endless_lessons, pack_lessons
from planners.training.options import TRANSCRIPT_TOKENS
from planners.training.packed_attention import PackedBatch, collate
from planners.training.packing import (
    IGNORE,
    PLANNER_FORM,
    ROUNDING,
    Encode,
    PackedExample,
    Packer,
    PromptForm,
    Slot,
    SlotMix,
    rounded,
)
from planners.training.recall_probes import MIN_LINES
from planners.training.rollout_files import Rollout, read_rollouts


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the curriculum. Every level has look-ups and decisions, else the model unlearns one of the two."""

    lines: int  # maximum lines of a memory
    styles: tuple[str, ...]
    lookups: float  # share of windows with probes only (short questions about the memory)
    plans: float  # share of windows with plan and goal slots only; in some of them, slots follow a memory
    recall: int  # maximum lines in the memory of a recall probe; 0 for no recall probes
    judged_kind: str  # kind of slot whose running accuracy must exceed ``pass_mark``
    pass_mark: float  # above 1 for the last level, which is never passed


LEVELS = (
    Level(10, ("plain",), 0.6, 0.2, 0, "probe", 0.85),
    Level(14, ("plain", "linked"), 0.5, 0.2, 0, "probe", 0.80),
    Level(20, ("plain", "linked"), 0.15, 0.35, 20, "step", 0.65),
    Level(36, ("plain", "linked"), 0.1, 0.2, 60, "step", 0.72),
    Level(60, ("plain", "linked"), 0.1, 0.15, 120, "step", 0.80),
    Level(120, ("plain", "linked"), 0.03, 0.35, 200, "step", 2.0),
)
ADAPTER_LEVELS = (  # for pretrained models, which can look up words from the start
    Level(20, ("natural", "plain", "linked"), 0.1, 0.25, 20, "step", 0.5),
    Level(36, ("natural", "natural", "plain", "linked"), 0.04, 0.25, 40, "step", 0.7),
    Level(60, ("natural", "natural", "plain", "linked"), 0.02, 0.35, 60, "step", 2.0),
)
RECALL_SHARE = 0.1  # share of recall probes among the windows that are neither look-ups nor plans
WINDOW_LESSONS = 1024  # lessons in a window
SHUFFLED_WINDOWS = 6  # windows whose batches are shuffled together, so that the model unlearns no kind of pack
GENERATED_SKIP_SHARE = 0.7  # share of generated rollouts left out of plans and goals; annotated ones need more time
TYPE_LEVEL_SKIP_SHARE = 0.3  # share of rollouts of skill set lota left out of all slots but plans and goals
LOOKUPS = SlotMix(trajectories=0, steps=0, probes=8, questions=6)
DECISIONS = SlotMix(trajectories=0, steps=8, probes=1, questions=8, single_object_share=0.5)
PLANS = SlotMix(wordings=4, plan=True, window=96)
GOALS = SlotMix(wordings=6, window=400)
HOUSE_GOALS = SlotMix(wordings=6, after_memory=True, window=96)
RECALL = SlotMix(probes=6, questions=6, recall=True)
ANNOTATED_PREFIX = "trial_"  # prefix of `Rollout.source` in annotated rollouts


@dataclass(frozen=True)
class Curriculum:
    """Levels of rising difficulty, and shares of the kinds of windows."""

    levels: Sequence[Level]
    lesson_share: float  # share of windows with lessons, if there are any
    decision_share: float  # share of single decisions among the windows without look-ups or plans; others: trajectories
    plan_mixes: Mapping[SlotMix, float]  # shares among the windows of plans and goals
    form: PromptForm = PLANNER_FORM
    is_limit: bool = False  # packs are shortened to the rows of a batch, since a large model's memory is tight

    def record(self) -> dict[str, Any]:
        """Return the curriculum as JSON values."""
        mixes = [{"share": share, **asdict(mix)} for mix, share in self.plan_mixes.items()]
        return {**asdict(replace(self, plan_mixes={})), "plan_mixes": mixes}


PLANNER_CURRICULUM = Curriculum(LEVELS, 0.2, 0.6, {HOUSE_GOALS: 0.7, PLANS: 0.3})
# A large model's rows cost more: trajectories have three times the targets per row of single decisions, and goals alone
# have the most instructions per row. The model also plans without a focus, and without the preamble.
ADAPTER_CURRICULUM = Curriculum(
    ADAPTER_LEVELS, 0.07, 0.35, {HOUSE_GOALS: 0.35, GOALS: 0.5, PLANS: 0.15},
    PromptForm(own_line=True, focus_share=0.75, preamble_share=0.7), is_limit=True,
)  # fmt: skip


def trajectory_mix(transcript: int) -> SlotMix:
    """Return the mix for trajectories. Long trajectories overlap, so they start at only two tasks of a rollout."""
    if transcript <= TRANSCRIPT_TOKENS:
        return SlotMix(trajectories=2, steps=0, probes=0, transcript=transcript, single_object_share=0.5)
    return SlotMix(trajectories=1, steps=0, probes=0, transcript=transcript, starts_per_rollout=2)


def endless_rollouts(files: Sequence[Path], rng: random.Random) -> Iterator[Rollout]:
    """Yield the rollouts of all files repeatedly, with the files in a new order each time."""
    while True:
        for path in rng.sample(list(files), len(files)):
            yield from read_rollouts(path)


def shuffled_rollouts(files: Sequence[Path], seed: int, streams: int = 12, buffer: int = 512) -> Iterator[Rollout]:
    """Yield rollouts endlessly, mixed from several files, since all rollouts of a file have the same setting."""
    rng = random.Random(seed)
    sources = [endless_rollouts(files, random.Random(f"{seed}/{number}")) for number in range(streams)]
    pool: list[Rollout] = []
    while True:
        pool.append(next(rng.choice(sources)))
        if len(pool) >= buffer:
            yield pool.pop(rng.randrange(len(pool)))


class BatchSource:
    """Source of batches of at most ``tokens`` rows, packed in a background thread. The trainer may raise ``level``.

    :param transcript: maximum tokens of a trajectory
    :param separate_share: share of batches whose memory lines do not attend to each other, as in separate KV blocks
    :param frozen_share: share of windows whose memory is a constant in the gradient
    :param goal_share: share of windows with goals alone, besides those of the curriculum
    """

    def __init__(
        self, files: Sequence[Path], encode: Encode, bos: int, pad: int, tokens: int, seed: int, level: int = 0,
        transcript: int = TRANSCRIPT_TOKENS, lessons: Sequence[Path] = (), separate_share: float = 0.0,
        frozen_share: float = 0.0, goal_share: float = 0.0, curriculum: Curriculum = PLANNER_CURRICULUM,
    ) -> None:  # fmt: skip
        self.level, self._curriculum, self._frozen_share, self._goal_share = level, curriculum, frozen_share, goal_share
        self._trajectories = trajectory_mix(transcript)
        self._source = shuffled_rollouts(files, seed)
        self._rng = random.Random(seed + 1)
        self._packer = Packer(encode, LOOKUPS, seed + 2, curriculum.form)
        self._encode, self._separate_share = encode, separate_share
        self._lessons = endless_lessons(lessons, random.Random(seed + 3)) if lessons else None
        self._bos, self._pad, self._tokens = bos, pad, tokens
        self._mixed_skills = len({rollout.skills for path in files for rollout in islice(read_rollouts(path), 1)}) > 1
        self._queue: queue.Queue[tuple[int, PackedBatch] | BaseException] = queue.Queue(maxsize=8)
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def next(self) -> tuple[int, PackedBatch]:
        """Return (level, batch). Raises the error that ended the background thread, if any."""
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        """Stop the background thread, which must not run while the process ends."""
        self._closed = True
        while self._thread.is_alive():
            with suppress(queue.Empty):
                self._queue.get(timeout=0.05)

    def _work(self) -> None:
        try:
            while not self._closed:
                batches: list[tuple[int, list[PackedExample], bool]] = []
                for _ in range(SHUFFLED_WINDOWS):
                    level = self.level if self._rng.random() < 0.8 else self._rng.randint(0, self.level)
                    frozen = self._rng.random() < self._frozen_share
                    window = self._window(self._curriculum.levels[level], frozen)
                    batches += [(level, packs, frozen) for packs in self._batches(window, frozen)]
                self._rng.shuffle(batches)
                for level, packs, frozen in batches:
                    separate = self._rng.random() < self._separate_share
                    batch = collate(packs, self._bos, self._pad, separate=separate, frozen=frozen)
                    self._queue.put((level, batch))
        except BaseException as error:  # raised by `next`
            self._queue.put(error)

    def _window(self, level: Level, frozen: bool) -> list[PackedExample]:
        """Make a window of lessons or of a few dozen packs. Packs of rollouts are sorted by length, to save padding.

        :raises ConfigError: no pack fits into a batch
        """
        if self._lessons and self._rng.random() < self._curriculum.lesson_share:
            return list(pack_lessons(self._lessons(WINDOW_LESSONS), self._encode, self._tokens, self._rng))
        mix = self._draw_mix(level)
        if not mix.recall:
            self._packer.mix = replace(mix, memory_lines=self._rng.randint(level.lines // 3, level.lines))
        tries, packs = 0, list[PackedExample]()
        while len(packs) < mix.window and not self._closed:
            new = self._draw(level, mix)
            if self._curriculum.is_limit:
                new = (fitted(pack, self._tokens, frozen) for pack in new)
            new = [pack for pack in new if pack.slots]
            packs, tries = packs + new, 0 if new else tries + 1
            if tries == MAX_TRIES:
                raise ConfigError(f"--batch-tokens {self._tokens} leaves no room for slots after a memory; use more")
        return packs if mix.recall else sorted(packs, key=lambda pack: (rounded(_width(pack)), pack.memory_tokens))

    def _draw(self, level: Level, mix: SlotMix) -> Iterable[PackedExample]:
        """Return the packs of the next rollout, or one pack of recall probes."""
        if mix.recall:
            self._packer.mix = mix
            share = self._rng.random() ** 2  # the square favours short memories, which teach the look-up
            size = MIN_LINES + round((level.recall - MIN_LINES) * share)
            return [self._packer.recall(self._rng.randint(max(MIN_LINES, size * 4 // 5), size))]
        rollout = next(self._source)
        if self._skips(rollout, mix):
            return []
        return self._packer.packs(rollout, self._rng.choice(level.styles))

    def _skips(self, rollout: Rollout, mix: SlotMix) -> bool:
        if mix.wordings:
            return not rollout.source.startswith(ANNOTATED_PREFIX) and self._rng.random() < GENERATED_SKIP_SHARE
        return rollout.skills == TYPE_LEVEL and self._mixed_skills and self._rng.random() < TYPE_LEVEL_SKIP_SHARE

    def _draw_mix(self, level: Level) -> SlotMix:
        if self._goal_share and self._rng.random() < self._goal_share:
            return GOALS
        chance = self._rng.random()
        if chance < level.lookups:
            return LOOKUPS
        if chance < level.lookups + level.plans:
            mixes = self._curriculum.plan_mixes
            (mix,) = self._rng.choices(list(mixes), list(mixes.values()))
            return mix
        if level.recall and self._rng.random() < RECALL_SHARE:
            return RECALL
        return DECISIONS if self._rng.random() < self._curriculum.decision_share else self._trajectories

    def _batches(self, packs: list[PackedExample], frozen: bool) -> list[list[PackedExample]]:
        """Divide packs into batches of at most ``tokens`` rows; a larger pack is a batch by itself."""
        batches: list[list[PackedExample]] = [[]]
        for pack in packs:
            if batches[-1] and _rows([*batches[-1], pack], frozen) > self._tokens:
                batches.append([])
            batches[-1].append(pack)
        return batches


MAX_TRIES = 1000  # rollouts in a row whose packs do not fit into a batch
FROZEN_COST = 0.35  # time and room of a memory row that is a constant, compared with those of a slot's row


def fitted(pack: PackedExample, rows: int, frozen: bool = False) -> PackedExample:
    """Return the pack with at most ``rows`` rows: slots without room are left out, longer ones are cut.

    :param frozen: memory rows count less, since they are constants
    """
    room = rows - round(rounded(1 + pack.memory_tokens) * (FROZEN_COST if frozen else 1))
    room = max(0, room) // ROUNDING * ROUNDING
    slots: list[Slot] = []
    width = 0
    for slot in pack.slots:
        cut = replace(slot, ids=slot.ids[:room], labels=slot.labels[:room])
        wider = max(width, rounded(len(cut.ids)))
        if (len(slots) + 1) * wider <= room and any(label != IGNORE for label in cut.labels):
            slots.append(cut)
            width = wider
    return replace(pack, slots=tuple(slots))


def _width(pack: PackedExample) -> int:
    return max(len(slot.ids) for slot in pack.slots)


def _rows(packs: Sequence[PackedExample], frozen: bool) -> int:
    """Return the number of rows of a padded batch; rows of a ``frozen`` memory count less."""
    memory = round(rounded(1 + max(pack.memory_tokens for pack in packs)) * (FROZEN_COST if frozen else 1))
    return len(packs) * (memory + max(len(pack.slots) for pack in packs) * rounded(max(map(_width, packs))))
