"""Workloads with a given memory size and rate of change, synthetic or replayed from ALFRED."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from envs.alfred.language.names import OBJECT_NAMES, PLACE_NAMES
from eval.latency.scripts import Recordings, Script, ScriptStep, sample_candidates
from planners.prompts.styles import Edit, PlainStyle
from planners.prompts.text import PROGRESS

REPLAYED = "alfred"  # churn value: replay recorded episodes
OBJECT_TYPES = tuple(sorted(name.lower() for name in OBJECT_NAMES))
PLACES = tuple(sorted(name.lower() for name in PLACE_NAMES))
STATES = ("", "clean", "hot", "cold", "sliced")
NO_CANDIDATES = ("",)  # an empty candidate: its only token, the end, is scored by the prompt's own logits


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters of a workload."""

    segments: int  # in a prompt
    store: int  # segments in memory
    churn: int | str  # segments that change per step, or "alfred" for a replay
    steps: int
    candidates: int | None  # number of skills scored per step; None: all admissible skills; 0: none
    age: int  # steps between the writing of the static segments and the first step
    seed: int = 0


def make_workload(plan: Workload, recordings: Recordings) -> list[Script]:
    """Return episodes with ``plan.steps`` steps in total."""
    scripts = replayed(plan, recordings) if plan.churn == REPLAYED else [synthetic(plan, recordings)]

    def limited(step: ScriptStep) -> ScriptStep:
        some = plan.candidates != 0
        admissible = sample_candidates(step.admissible, step.skill, plan.candidates) if some else NO_CANDIDATES
        return replace(step, admissible=admissible)

    return [replace(script, steps=tuple(map(limited, script.steps))) for script in scripts]


def synthetic(plan: Workload, recordings: Recordings) -> Script:
    """Make an episode whose memory is half static finished tasks, half objects; ``churn`` objects change at every step.

    If ``churn`` exceeds the number of objects, tasks change too. Instruction, skills and candidates are those of the
    first recorded episode; the agent moves at every step. Old entries of the agent's action log are removed, so that
    the memory keeps its size.
    """
    rng, real = random.Random(f"{plan.seed} {plan.store} {plan.churn}"), recordings[0]
    tasks = _finished_tasks(plan.store - plan.store // 2, recordings)
    objects = [_object(number, rng) for number in range(1, plan.store // 2 + 1)]
    steps = []
    for number in range(plan.steps):
        changes = _changed_edits(plan, objects, rng, recordings) if number else tuple(objects)
        agent = Edit("agent", "agent", f"agent at {_place(rng)} holding nothing\n")
        removed = [Edit(f"did_{number - PROGRESS}", "history", None)] if number > PROGRESS else []
        template = real.steps[number % len(real.steps)]
        steps.append(ScriptStep((*removed, *changes, agent), template.admissible, template.skill))
    return Script(real.instruction, real.skills, tuple(steps), tuple(tasks), plan.age)


def replayed(plan: Workload, recordings: Recordings) -> list[Script]:
    """Return recorded episodes; static finished tasks fill the memory up to ``plan.store`` segments at the start."""
    scripts: list[Script] = []
    while remaining := plan.steps - sum(len(script.steps) for script in scripts):
        real = recordings[len(scripts)].first_steps(remaining)
        known = {edit.id for edit in real.steps[0].edits if edit.category != "agent" and edit.text is not None}
        tasks = _finished_tasks(max(0, plan.store - len(known)), recordings)
        scripts.append(replace(real, static_edits=tuple(tasks), age=plan.age))
    return scripts


def _finished_tasks(number: int, recordings: Recordings) -> list[Edit]:
    """Return ``number`` different tasks, with ids that no planner uses."""
    return [_task(index, index, recordings.instructions) for index in range(1, number + 1)]


def _task(index: int, steps: int, instructions: Sequence[str]) -> Edit:
    edit = PlainStyle().finished(index, instructions[index % len(instructions)], True, steps)
    return replace(edit, id=f"old_{edit.id}")


def _object(number: int, rng: random.Random, old: Edit | None = None) -> Edit:
    """Return an object with a random place and state that differs from ``old``."""
    kind = OBJECT_TYPES[number % len(OBJECT_TYPES)]
    name = f"{kind}_{1 + number // len(OBJECT_TYPES)}"
    edit = old
    while edit == old:
        words = (kind, name, _place(rng), rng.choice(STATES))
        edit = Edit(name, "object", " ".join(filter(None, words)) + "\n")
    return edit


def _place(rng: random.Random) -> str:
    return f"{rng.choice(PLACES)}_{rng.randint(1, 9)}"


def _changed_edits(plan: Workload, objects: list[Edit], rng: random.Random, recordings: Recordings) -> Iterator[Edit]:
    """Yield new versions of the segments that change at a step, and update ``objects``."""
    tasks = plan.store - len(objects)
    for index in rng.sample(range(len(objects)), min(plan.churn, len(objects))):
        objects[index] = _object(index + 1, rng, objects[index])
        yield objects[index]
    for number in rng.sample(range(1, tasks + 1), min(max(0, plan.churn - len(objects)), tasks)):
        yield _task(number, rng.randint(1000, 9999), recordings.instructions)
