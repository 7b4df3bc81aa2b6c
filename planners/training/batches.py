"""Endless batches of training data from rollout files, and the curriculum that sets their difficulty."""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from planners.prompts.text import TYPE_LEVEL
from planners.training.lessons import endless_lessons
from planners.training.lessons import packs as lesson_packs
from planners.training.options import TRANSCRIPT
from planners.training.packed_attention import Batch, collate
from planners.training.packing import Encode, Mix, Pack, Packer, rounded
from planners.training.recall_probes import LEAST
from planners.training.rollout_files import Rollout, read_rollouts


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the curriculum. Every level has look-ups and decisions: one added later displaces the other."""

    lines: int  # maximum lines of a memory
    styles: tuple[str, ...]
    lookups: float  # share of batches with probes only
    plans: float  # share of batches with plans and goals only, of which some follow a memory
    recall: int  # maximum lines of recall probes, a share `RECALLED` of the batches; 0 for none
    judged_by: str  # kind of slot whose running accuracy must reach ``pass_mark``
    pass_mark: float


LEVELS = (
    Level(10, ("plain",), 0.6, 0.2, 0, "probe", 0.85),
    Level(14, ("plain", "linked"), 0.5, 0.2, 0, "probe", 0.80),
    Level(20, ("plain", "linked"), 0.15, 0.35, 20, "step", 0.65),
    Level(36, ("plain", "linked"), 0.1, 0.2, 60, "step", 0.72),
    Level(60, ("plain", "linked"), 0.1, 0.15, 120, "step", 0.80),
    Level(120, ("plain", "linked"), 0.03, 0.35, 200, "step", 2.0),
)
RECALLED = 0.1
LESSONS = 0.2  # share of batches with lessons, if there are any
WINDOW_LESSONS = 1024  # lessons of a window
WINDOWS = 6  # windows shuffled together, else the model unlearns the previous kind
SKIPPED_GENERATED = 0.7  # share of generated rollouts skipped for plans: annotators' wordings take longest to learn
SKIPPED_TYPE_LEVEL = 0.3  # share of type-level rollouts used for plans only
DECISION_SHARE = 0.6  # share of decisions, the rest are trajectories
LOOKUPS = Mix(trajectories=0, steps=0, probes=8, questions=6)
DECISIONS = Mix(trajectories=0, steps=8, probes=1, questions=8, easy=0.5)
PLANS = Mix(plans=4)
HOUSE_GOALS = Mix(plans=6, in_house=True)
RECALL = Mix(probes=6, questions=6, recall=True)
ANNOTATED = "trial_"  # prefix of the sources of annotated rollouts


def trajectories(transcript: int) -> Mix:
    """Return the mix of the `append` layout; few tasks of a stream start a long trajectory, since these overlap."""
    if transcript <= TRANSCRIPT:
        return Mix(trajectories=2, steps=0, probes=0, transcript=transcript, easy=0.5)
    return Mix(trajectories=1, steps=0, probes=0, transcript=transcript, starts=2)


def endless(files: Sequence[Path], rng: random.Random) -> Iterator[Rollout]:
    """Yield the rollouts of all files repeatedly, with the files in a new order each time."""
    while True:
        for path in rng.sample(list(files), len(files)):
            yield from read_rollouts(path)


def shuffled(files: Sequence[Path], seed: int, streams: int = 12, buffer: int = 512) -> Iterator[Rollout]:
    """Yield all rollouts, interleaved from several files and shuffled, since each file has only one setting."""
    rng = random.Random(seed)
    sources = [endless(files, random.Random(f"{seed}/{number}")) for number in range(streams)]
    pool: list[Rollout] = []
    while True:
        pool.append(next(rng.choice(sources)))
        if len(pool) >= buffer:
            yield pool.pop(rng.randrange(len(pool)))


class Feed:
    """Source of batches of about ``tokens`` rows, packed in a background thread. ``level`` may be raised at any time.

    :param apart: share of batches whose memory lines are encoded separately
    """

    def __init__(
        self, files: Sequence[Path], encode: Encode, bos: int, pad: int, tokens: int, seed: int, level: int = 0,
        transcript: int = TRANSCRIPT, lessons: Sequence[Path] = (), apart: float = 0.0,
    ) -> None:  # fmt: skip
        self.level = level
        self._trajectories = trajectories(transcript)
        self._source = shuffled(files, seed)
        self._rng = random.Random(seed + 1)
        self._packer = Packer(encode, LOOKUPS, seed + 2)
        self._encode, self._apart = encode, apart
        self._lessons = endless_lessons(lessons, random.Random(seed + 3)) if lessons else None
        self._bos, self._pad, self._tokens = bos, pad, tokens
        self._has_both = len({rollout.skills for path in files for rollout in islice(read_rollouts(path), 1)}) > 1
        self._queue: queue.Queue[tuple[int, Batch] | BaseException] = queue.Queue(maxsize=8)
        self._closed = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def next(self) -> tuple[int, Batch]:
        """Return (level, batch). Raises the error of the background thread, if it had one."""
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
                batches: list[tuple[int, list[Pack]]] = []
                for _ in range(WINDOWS):
                    level = self.level if self._rng.random() < 0.8 else self._rng.randint(0, self.level)
                    batches += [(level, packs) for packs in self._batches(self._window(LEVELS[level]))]
                self._rng.shuffle(batches)
                for level, packs in batches:
                    apart = self._rng.random() < self._apart
                    self._queue.put((level, collate(packs, self._bos, self._pad, apart=apart)))
        except BaseException as error:  # raised by `next`
            self._queue.put(error)

    def _window(self, level: Level) -> list[Pack]:
        """Make a few dozen packs of one kind, sorted by length, so that batches need little padding."""
        if self._lessons and self._rng.random() < LESSONS:
            return list(lesson_packs(self._lessons(WINDOW_LESSONS), self._encode, self._tokens, self._rng))
        mix = self._draw_mix(level)
        if mix.recall:
            self._packer.mix = mix
            share = self._rng.random() ** 2  # favours short memories, which teach the look-up
            size = LEAST + round((level.recall - LEAST) * share)
            return [self._packer.recall(self._rng.randint(max(LEAST, size * 4 // 5), size)) for _ in range(24)]
        self._packer.mix = replace(mix, memory_lines=self._rng.randint(level.lines // 3, level.lines))
        packs: list[Pack] = []
        while len(packs) < (96 if mix.plans else 24):
            rollout = next(self._source)
            if not self._skips(rollout, mix):
                style = self._rng.choice(level.styles)
                packs += [pack for pack in self._packer.packs(rollout, style) if pack.slots]
        return sorted(packs, key=lambda pack: (rounded(_width(pack)), pack.memory_tokens))

    def _skips(self, rollout: Rollout, mix: Mix) -> bool:
        if mix.plans:
            return not rollout.source.startswith(ANNOTATED) and self._rng.random() < SKIPPED_GENERATED
        return rollout.skills == TYPE_LEVEL and self._has_both and self._rng.random() < SKIPPED_TYPE_LEVEL

    def _draw_mix(self, level: Level) -> Mix:
        chance = self._rng.random()
        if chance < level.lookups:
            return LOOKUPS
        if chance < level.lookups + level.plans:
            return HOUSE_GOALS if self._rng.random() < 0.7 else PLANS
        if level.recall and self._rng.random() < RECALLED:
            return RECALL
        return DECISIONS if self._rng.random() < DECISION_SHARE else self._trajectories

    def _batches(self, packs: list[Pack]) -> list[list[Pack]]:
        """Divide packs into batches of at most ``tokens`` rows, or of a single pack."""
        batches: list[list[Pack]] = [[]]
        for pack in packs:
            if batches[-1] and _rows([*batches[-1], pack]) > self._tokens:
                batches.append([])
            batches[-1].append(pack)
        return batches


def _width(pack: Pack) -> int:
    return max(len(slot.ids) for slot in pack.slots)


def _rows(packs: Sequence[Pack]) -> int:
    """Return the rows of a padded batch."""
    memory = rounded(1 + max(pack.memory_tokens for pack in packs))
    return len(packs) * (memory + max(len(pack.slots) for pack in packs) * rounded(max(map(_width, packs))))
