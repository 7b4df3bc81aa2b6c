"""Prompts that planners are trained on are those that the planner makes, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config

from envs.worlds import GENERATED
from eval.dataset.__main__ import HouseEpisodes, RolloutRecorder
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.engine.base import Engine
from memory.engine.models.load import from_config
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.prompt.report import Prefill
from memory.recompute.full import Full
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.segments.groups import Grouping
from memory.segments.sentence_encoder import CachedEncoder, HashedNgrams
from memory.session import MemorySession
from planners.base import TaskResult
from planners.bundled import BUNDLED
from planners.kv_planner import KVPlanner
from planners.prompts.formats import PlainFormat
from planners.prompts.styles import STYLES
from planners.tiny.checkpoint import TOKENIZER, TOKENIZER_CONFIG
from planners.tiny.tokenizer import load_tokenizer
from planners.training.packing import IGNORE, PackedExample, Packer, PromptForm, Slot, SlotMix
from planners.training.rollout_files import Rollout
from planners.training.task_replay import TaskReplay

SETTINGS = [("lota", "full"), ("grounded", "partial")]
UNGROUPED = Grouping(window=10**6)  # the training data has no static groups


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=load_tokenizer(BUNDLED / TOKENIZER), **TOKENIZER_CONFIG)


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast, chat: PreTrainedTokenizerFast) -> Iterator[Engine]:
    config = Qwen2Config(
        vocab_size=max(len(tokenizer), len(chat)), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=2**15,
    )  # fmt: skip
    with TransformersEngine(from_config(config, torch.float32, seed=1)) as engine:
        yield engine


class EveryStep(Packer):
    """Packer that packs all steps of a task in order, and its goal."""

    def _pack(self, replays: Sequence[TaskReplay]) -> PackedExample:
        pack = super()._pack(replays)
        goal = self._slot("goal", replays[0].goal(replays[0].task.instructions[0]))
        return replace(pack, slots=(*pack.slots, goal))

    def _sample_steps(self, task: object) -> list[int]:
        return list(range(len(task.steps)))


def answer_start(slot: Slot) -> int:
    """Return the index of the first token of the answer."""
    return next(place for place, label in enumerate(slot.labels) if label != IGNORE)


def trained(pack: PackedExample, slot: Slot, start: Sequence[int]) -> list[int]:
    """Return the training prompt of a slot, with its answer."""
    memory = [token for name, ids in pack.memory if name not in slot.hidden_lines for token in ids]
    return [*start, *memory, *slot.ids]


def prompts(
    rollout: Rollout, packs: Sequence[PackedExample], style: str, layout: str, form: PlainFormat, engine: Engine
) -> list[list[list[int]]]:
    """Return the planner's prompts by task, with the rollout's skills, and goals and focus lines of the training data.

    A task has one prompt for its goal, then one per step.
    """
    stages = (Prefix(), Nothing()) if layout == "append" else (PerSegment(), Full())
    method = MemoryMethod("test", All(), *stages, Serial(), layout=layout, grouping=UNGROUPED)
    session = MemorySession(engine, method, CachedEncoder(HashedNgrams()), form.line, 40, form.context())
    planner = KVPlanner(session, form, style)
    prompt_ids, prefill, (newline,) = [], session.prefill, form.stops()

    def record(*arguments: object, **options: object) -> Prefill:
        result = prefill(*arguments, **options)
        prompt_ids.append(result.layout.token_ids.tolist())
        return result

    session.prefill = record
    foci = [[slot.ids[answer_start(slot) :] for slot in pack.slots if slot.kind == "step"] for pack in packs]
    planner.reset(rollout.tasks[0].instructions[0], rollout.skills)
    facts, task_prompts = [], []
    for task, answers in zip(rollout.tasks, foci, strict=True):
        facts += task.facts
        task_prompts.append([])
        for step, answer in zip(task.steps, answers, strict=True):
            goal = form.line(f" {task.goal}")
            stop = answer.index(newline) if form.after_focus(rollout.skills) else len(answer)
            session.generate = lambda *arguments, focus=answer[:stop], goal=goal, keep=False: (
                list(focus[: arguments[1]]) if keep else goal
            )
            planner.observe(facts)
            planner.decide([step.skill], {})
            task_prompts[-1] += prompt_ids
            prompt_ids.clear()
            planner.feedback(step.skill, step.ok, step.message)
            facts = list(step.facts)
        following = rollout.tasks[len(task_prompts)].instructions[0] if len(task_prompts) < len(rollout.tasks) else None
        planner.finish_task(TaskResult(task.instructions[0], task.success, len(task.steps)), following)
    return task_prompts


@pytest.mark.parametrize(("style", "focus"), [("plain", "words"), ("linked", "words"), *product(STYLES, ["line"])])
@pytest.mark.parametrize(("skills", "observability"), SETTINGS)
@pytest.mark.parametrize("world", GENERATED)
def test_trained_prompts_are_the_planners(
    world: str, skills: str, observability: str, style: str, focus: str, tokenizer: PreTrainedTokenizerFast,
    chat: PreTrainedTokenizerFast, engine: Engine,
) -> None:  # fmt: skip
    """A focus of words is for planner-tiny's tokenizer, one on its own line for tokenizers that split words."""
    form = PlainFormat(tokenizer if focus == "words" else chat, goals=True, focus=focus)
    recorder = RolloutRecorder(skills, observability, 0.3, 1)
    longest, spec = 0, GENERATED[world].spec
    for episode in spec.training(None, stream=3, limit=2 if world == "alfred" else 1):
        rollout = recorder.rollout(HouseEpisodes(spec, [episode]))
        mix = SlotMix(memory_lines=10**6, trajectories=1, transcript=10**6, steps=10**6, probes=0)
        packs = list(EveryStep(form.line, mix, form=PromptForm(own_line=focus == "line")).packs(rollout, style))
        rebuilt = prompts(rollout, packs, style, "memory", form, engine)
        for pack, task_prompts in zip(packs, rebuilt, strict=True):
            steps = [slot for slot in pack.slots if slot.kind == "step"]
            longest = max(longest, len(steps))
            (goal,) = (slot for slot in pack.slots if slot.kind == "goal")
            assert task_prompts[0] == trained(pack, goal, form.context())[: answer_start(goal) - len(goal.ids)]
            for slot, prompt in zip(steps, task_prompts[1:], strict=True):
                whole = trained(pack, slot, form.context())
                assert prompt == whole[: answer_start(slot) - len(slot.ids)]
        (trajectory,) = (slot for slot in packs[0].slots if slot.kind == "trajectory")
        transcript = prompts(rollout, packs, style, "append", form, engine)[-1][-1]  # of the whole stream
        assert trained(packs[0], trajectory, form.context())[: len(transcript)] == transcript
    assert longest > 16 or skills == "lota"
