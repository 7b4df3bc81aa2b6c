"""The KV planner on a tiny random model: what it writes to memory, what it prompts, what it decides."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedTokenizerFast, Qwen2Config

from eval.fidelity.deviation import Shadow
from keep_agent.errors import ConfigError
from memory.construction.per_segment import PerSegment
from memory.construction.prefix import Prefix
from memory.engine.base import Engine
from memory.engine.models.load import from_config
from memory.engine.transformers.engine import TransformersEngine
from memory.loading.serial import Serial
from memory.method import MemoryMethod
from memory.recompute.full import Full
from memory.recompute.none import Nothing
from memory.retrieval.all import All
from memory.segments.sentence_encoder import CachedEncoder, HashedNgrams
from memory.segments.store import SegmentStore
from memory.session import MemorySession
from planners.base import Decision, Finished
from planners.kv_planner import GOAL_TOKENS, KVPlanner
from planners.prompts.formats import LotaFormat, PlainFormat
from planners.prompts.text import PROGRESS, Turn
from planners.tiny.tokenizer import BOS, PAD, UNK, train_tokenizer
from planners.training.rollout_files import FactRecord

SKILLS = ("go to cabinet 1", "go to cabinet 2", "open cabinet 1", "done")
FACTS = (
    FactRecord("cabinet_1", "receptacle", "cabinet", states=("closed",)),
    FactRecord("cabinet_2", "receptacle", "cabinet", states=("open",)),
    FactRecord("mug_1", "object", "mug", "cabinet_2"),
    FactRecord("agent", "agent", "agent"),
)
AT_TWO = FactRecord("agent", "agent", "agent", "cabinet_2", sees=("mug_1",))

AT = "agent at cabinet_2 holding nothing there mug mug_1"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    texts = ["task grounded lota next failed go to open cabinet mug agent at start holding nothing hand closed\n"] * 9
    texts += ["did finished succeeded after steps done get a the first it is\n"] * 9
    inner = train_tokenizer(texts, ["mug_1", "cabinet_1", "cabinet_2"], 400)
    return PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS, pad_token=PAD, unk_token=UNK)


@pytest.fixture(scope="module")
def engine(tokenizer: PreTrainedTokenizerFast) -> Iterator[Engine]:
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=900, initializer_range=0.2,
    )  # fmt: skip
    with TransformersEngine(from_config(config, torch.float32, seed=1)) as made:
        yield made


def make(
    engine: Engine, tokenizer: PreTrainedTokenizerFast, layout: str = "memory", goals: bool = False, **settings: object
) -> KVPlanner:
    stages = (Prefix(), Nothing()) if layout == "append" else (PerSegment(), Full())
    method = MemoryMethod("test", All(), *stages, Serial(), layout=layout)
    form = PlainFormat(tokenizer, goals=goals)
    session = MemorySession(engine, method, CachedEncoder(HashedNgrams()), form.line, 40, form.context())
    return KVPlanner(session, form, **settings)


def begun(planner: KVPlanner) -> KVPlanner:
    """It has a task and has seen the house."""
    planner.reset("Get the mug", "grounded")
    planner.observe(FACTS)
    return planner


def prompt(tokenizer: PreTrainedTokenizerFast, decision: Decision) -> list[str]:
    text = tokenizer.decode(decision.prefill.layout.token_ids.tolist())
    return [line.strip() for line in text.removeprefix(BOS).split("\n")]


def play(planner: KVPlanner, forced: bool = False) -> list[Decision]:
    """Two turns and a third decision; what is executed is the planner's own choice only if it is ``forced`` to it."""
    skills = ("open cabinet 1", "go to cabinet 2")
    begun(planner)
    decisions = [planner.decide(skills[:1] if forced else SKILLS, {})]
    planner.feedback(skills[0], False, "you are not at cabinet 1")
    decisions.append(planner.decide(skills[1:] if forced else SKILLS, {}))
    planner.feedback(skills[1], True, "")
    planner.observe([AT_TWO])
    return [*decisions, planner.decide(SKILLS, {})]


def test_golden_prompts_in_the_memory_layout(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    first, second, last = play(make(engine, tokenizer))
    memory = ["cabinet cabinet_1 closed", "cabinet cabinet_2 open", "mug mug_1 cabinet_2"]
    task, start = "task grounded get the mug", "agent at start holding nothing"
    failed = ["next open cabinet_1", "failed you are not at cabinet_1"]
    assert prompt(tokenizer, first) == [*memory, task, start, "next"]
    assert prompt(tokenizer, second) == [*memory, task, *failed, start, "next"]
    assert prompt(tokenizer, last) == [*memory, task, "next go to cabinet_2", AT, "next"]


@pytest.mark.parametrize("layout", ["memory", "append"])
@pytest.mark.parametrize("message", ["", "  "])
def test_a_failure_without_a_reason_is_told_and_is_no_memory_of_something_done(
    engine: Engine, tokenizer: PreTrainedTokenizerFast, layout: str, message: str
) -> None:
    planner = begun(make(engine, tokenizer, layout))
    planner.decide(["open cabinet 1"], {})
    planner.feedback("open cabinet 1", False, message)
    lines = prompt(tokenizer, planner.decide(SKILLS, {}))
    failed = next(index for index, line in enumerate(lines) if line.startswith("failed"))
    assert lines[failed] == "failed it did not work" and lines[failed - 1].endswith("open cabinet_1")
    planner.finish_task(Finished("Get the mug", False, 1), "Open it")
    assert not planner.session.store.of("history")


def _joined(lines: list[str]) -> list[str]:
    """Without what says where a word begins: an untrained model writes pieces of words."""
    return [line.replace(" ", "").replace("##", "") for line in lines]


def test_a_transcript_only_grows(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    first, second, last = play(make(engine, tokenizer, "append"), forced=True)
    texts = [prompt(tokenizer, decision) for decision in (first, second, last)]
    told = [
        *texts[0][:-1],
        f"next {first.extra['focus']} open cabinet_1",
        "failed you are not at cabinet_1",
        "agent at start holding nothing",
        f"next {second.extra['focus']} go to cabinet_2",
        AT,
        "next",
    ]
    assert _joined(texts[2]) == _joined(told)
    assert last.prefill.counts.hit_tokens > 0


def test_a_skill_that_another_decided_is_told_without_a_focus(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    planner = begun(make(engine, tokenizer, "append"))
    for own, executed in (("go to cabinet 1", "open cabinet 1"), ("go to cabinet 2", "go to cabinet 2")):
        focus = planner.decide([own], {}).extra["focus"]
        planner.feedback(executed, True, "")
    told = _joined([line for line in prompt(tokenizer, planner.decide(SKILLS, {})) if line.startswith("next")])
    assert told == _joined(["next open cabinet_1", f"next {focus} go to cabinet_2", "next"])


def test_a_finished_task_becomes_memory_and_the_next_one_starts(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    planner = make(engine, tokenizer)
    play(planner)
    planner.finish_task(Finished("Get the mug", True, 2), "Open it")
    lines = prompt(tokenizer, planner.decide(SKILLS, {}))
    assert lines[3:5] == ["did go to cabinet_2", "finished get the mug succeeded after 2 steps"]  # the first one failed
    assert lines[-3:] == ["task grounded open it", AT, "next"]


def test_memory_holds_the_same_in_both_layouts_and_a_transcript_repeats_no_skill(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    """Methods of both layouts are compared: they choose from the same segments. The agent's own line is none."""
    stores, lines = [], []
    for layout in ("memory", "append"):
        planner = make(engine, tokenizer, layout)
        play(planner)
        planner.feedback("done", True, "")
        planner.finish_task(Finished("Get the mug", True, 3), "Open it")
        lines = prompt(tokenizer, planner.decide(SKILLS, {}))
        stores.append([(segment.id, segment.text, segment.last_changed) for segment in planner.session.store])
    assert (
        stores[0] == stores[1]
        and "agent" not in [id for id, _, _ in stores[0]]
        and ("did_2", "did go to cabinet_2\n", 3) in stores[0]
    )
    assert not any(line.startswith("did") for line in lines)
    assert lines[-5].startswith("next") and lines[-5].endswith("done")
    assert lines[-4:] == ["finished get the mug succeeded after 3 steps", "task grounded open it", AT, "next"]


def test_a_transcript_that_is_full_begins_anew_with_the_task_and_its_turns(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    planner = make(engine, tokenizer, "append")
    play(planner)
    lengths, turns = [0, 1], ["next open cabinet_1", "failed you are not at cabinet_1", "next go to cabinet_2"]
    while lengths[-1] > lengths[-2]:
        planner.feedback("go to cabinet 1", True, "")
        turns.append("next go to cabinet_1")
        lines = prompt(tokenizer, planner.decide(SKILLS, {}))
        lengths.append(len(lines))
    start = lines.index("task grounded get the mug")
    assert lines[start + 1 :] == [*turns[-PROGRESS:], AT, "next"]


def test_the_choice_is_the_most_likely_candidate_and_repeats(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    decisions = [play(make(engine, tokenizer, reduce=reduce))[2] for reduce in ("sum", "mean", "sum")]
    assert decisions[0].skill == decisions[2].skill == decisions[0].scores[0][0]
    assert [score for _, score in decisions[0].scores] == sorted((s for _, s in decisions[0].scores), reverse=True)
    ids = decisions[0].prefill.layout.token_ids
    form = PlainFormat(tokenizer)
    for _ in range(form.focus("grounded")):  # the model's own most likely words, one by one
        ids = torch.cat([ids, engine.forward_plain(ids)[-1].argmax()[None]])
    assert tokenizer.decode(ids[-form.focus("grounded") :].tolist()) == decisions[0].extra["focus"]
    for skill, score in decisions[0].scores:
        own = form.candidate(skill)
        logits = engine.forward_plain(torch.cat([ids, torch.tensor(own)])).log_softmax(-1)
        expected = sum(logits[len(ids) - 1 + i, token] for i, token in enumerate(own))
        assert score == pytest.approx(float(expected), abs=1e-3)


def test_generation_that_is_no_skill_falls_back_to_scoring(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    scored, written = (play(make(engine, tokenizer, policy=policy))[0] for policy in ("score", "generate"))
    assert written.scores == scored.scores  # behind the same prompt, not behind what was written in vain
    assert written.score_tokens >= scored.score_tokens  # equal where the random model ends its line at once


class Dictated:
    """A session whose model writes what it is told to."""

    method = SimpleNamespace(layout="memory")

    def __init__(self, ids: list[int]) -> None:
        self.store, self._ids = SegmentStore(), ids

    def reset(self) -> None:
        self.store.clear()

    def prefill(self, *_: object, **__: object) -> None:
        """No prompt."""

    def generate(self, _prefill: object, tokens: int, _stops: object, keep: bool = False) -> list[int]:
        return [0] * tokens if keep else self._ids


def test_a_generated_skill_is_recognised_in_the_spelling_of_its_format(
    tokenizer: PreTrainedTokenizerFast, chat: PreTrainedTokenizerFast
) -> None:
    for form, text in ((PlainFormat(tokenizer), "go to cabinet_2"), (LotaFormat(chat), " go to cabinet 2")):
        ids = form.line(text)
        planner = KVPlanner(Dictated(ids), form, policy="generate")
        planner.reset("Get the mug", "grounded")
        decision = planner.decide(SKILLS, {})
        tokens = form.focus("grounded") + len(ids)
        assert (decision.skill, decision.scores, decision.score_tokens) == ("go to cabinet 2", (), tokens)


def test_what_was_in_vain_is_not_tried_again_unless_skills_fail_by_chance(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    for retry in (False, True):
        planner = begun(make(engine, tokenizer, retry=retry))
        tried: list[str] = []
        for _ in SKILLS:
            chosen = planner.decide(SKILLS, {}).skill
            assert retry or chosen not in tried
            planner.feedback(chosen, False, "no")
            tried.append(chosen)
        assert (set(tried) == set(SKILLS)) is not retry
        assert planner.decide(SKILLS, {}).skill in SKILLS  # nothing else is left


def test_a_planner_that_is_after_something_does_not_end_the_task(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    planner = begun(make(engine, tokenizer))
    for skill in SKILLS:
        decision = planner.decide(("done", skill), {})
        assert decision.skill == skill and not decision.extra["focus"].startswith("nothing")
    assert planner.decide(("done",), {}).skill == "done"  # nothing else is left


def test_reset_forgets(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    planner = make(engine, tokenizer, style="linked")
    first = play(planner)[2]
    planner.finish_task(Finished("Get the mug", False, 2), None)
    assert prompt(tokenizer, play(planner)[2]) == prompt(tokenizer, first)


def test_settings_that_do_not_exist_are_named(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(ConfigError, match="score, generate"):
        make(engine, tokenizer, policy="guess")
    with pytest.raises(ConfigError, match="sum, mean"):
        make(engine, tokenizer, reduce="max")
    with pytest.raises(ConfigError, match="max_new_tokens=0"):
        make(engine, tokenizer, max_new_tokens=0)
    with pytest.raises(ConfigError, match="no admissible skill"):
        planner = make(engine, tokenizer)
        planner.reset("x", "lota")
        planner.observe(FACTS)
        planner.decide((), {})


def test_a_long_task_tells_its_last_turns_and_remembers_the_rest(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    planner = begun(make(engine, tokenizer))
    for number in range(PROGRESS + 3):
        planner.feedback("open cabinet 1" if number < 3 else "go to cabinet 2", True, "")
    lines = prompt(tokenizer, planner.decide(SKILLS, {}))
    assert lines.count("next go to cabinet_2") == PROGRESS
    assert lines.count("did open cabinet_1") == 3 and "next open cabinet_1" not in lines
    planner.finish_task(Finished("Get the mug", False, PROGRESS + 3), "again")
    lines = prompt(tokenizer, planner.decide(SKILLS, {}))
    assert lines.count("did go to cabinet_2") == PROGRESS


@pytest.mark.parametrize("layout", ["memory", "append"])
def test_the_model_says_first_what_an_instruction_asks_for(
    engine: Engine, tokenizer: PreTrainedTokenizerFast, layout: str
) -> None:
    planner = make(engine, tokenizer, layout, goals=True)
    first, second, last = play(planner, forced=True)
    goal = first.extra["understood"]
    assert goal and second.extra["understood"] == last.extra["understood"] == goal
    (line,) = (line for line in prompt(tokenizer, first) if line.startswith("task"))
    said = "get the mug goal" if layout == "append" else "goal"  # a transcript tells both, once
    assert _joined([line]) == _joined([f"task grounded {said} {goal}"])
    counts = second.prefill.counts
    assert first.prefill.counts.prompt_tokens > first.prefill.layout.rows  # two prompts, both counted
    assert counts.prompt_tokens == second.prefill.layout.rows
    planner.finish_task(Finished("Get the mug", True, 2), "Open it")
    assert planner.state.goal == ""
    later = planner.decide(SKILLS, {})
    said = "open it goal" if layout == "append" else "goal"
    assert any(line.startswith(f"task grounded {said} ") for line in prompt(tokenizer, later))


def test_planners_of_one_transcript_say_one_goal(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    def planner() -> KVPlanner:
        return make(engine, tokenizer, "append", goals=True)

    record = SimpleNamespace(add=lambda *_: None)
    shadow = Shadow(
        engine, {"one": planner(), "other": (other := planner())}, {"one": record, "other": record}, common=True
    )
    shadow.reset("Get the mug", "grounded")
    shadow.observe(FACTS)
    shadow._planners["one"].goal = "find mug"  # whatever the other would have said
    shadow.decide(SKILLS, {})
    assert other.state.goal == "find mug"


def test_a_goal_is_what_the_model_writes_behind_memory_and_instruction(
    engine: Engine, tokenizer: PreTrainedTokenizerFast
) -> None:
    planner = begun(make(engine, tokenizer, goals=True))
    form = PlainFormat(tokenizer, goals=True)
    lines = ["cabinet cabinet_1 closed", "cabinet cabinet_2 open", "mug mug_1 cabinet_2"]
    ids = torch.tensor([*form.context(), *form.line("".join(f"{line}\n" for line in lines))])
    ids = torch.cat([ids, torch.tensor(form.goal("grounded", "Get the mug"))])
    for _ in range(GOAL_TOKENS):
        following = engine.forward_plain(ids)[-1].argmax()
        if int(following) in form.stops():
            break
        ids = torch.cat([ids, following[None]])
    written = tokenizer.decode(ids.tolist()).split(" goal ")[1]
    assert planner.decide(SKILLS, {}).extra["understood"] == " ".join(written.lower().split())


def test_what_is_gone_is_told_in_a_transcript(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    """Its old line stays there; where the prompt is rebuilt it is left out."""
    lines = {}
    for layout in ("memory", "append"):
        planner = begun(make(engine, tokenizer, layout))
        planner.decide(SKILLS, {})
        planner.feedback("go to cabinet 2", True, "")
        planner.observe([FactRecord("mug_1", "object", "mug", gone=True)])
        lines[layout] = [line for line in prompt(tokenizer, planner.decide(SKILLS, {})) if line.startswith("mug mug_1")]
    assert not lines["memory"]
    assert len(lines["append"]) == 2 and lines["append"][-1].replace(" ##", "").endswith("gone")


@pytest.mark.parametrize("layout", ["memory", "append"])
def test_the_turns_of_an_endless_task_are_not_kept_for_ever(
    engine: Engine, tokenizer: PreTrainedTokenizerFast, layout: str
) -> None:
    """What memory tells need not be kept beside it; the prompt counts on."""
    planner = begun(make(engine, tokenizer, layout))
    for number in range(12):
        planner.act()
        planner.feedback(f"go to cabinet {number % 2 + 1}", True, "")
    state = planner.state
    assert len(state.turns) == PROGRESS and state.past + len(state.turns) == 12
    assert planner._whole_query() == planner._format.query(
        "grounded", "Get the mug" if layout == "append" else "get the mug", [Turn("go to cabinet 2")], planner._now, 11
    )
    other = make(engine, tokenizer, layout)
    other.reset("Get the mug", "grounded")
    other.load(state)
    assert other._whole_query() == planner._whole_query() and other.state == state
    asked, query = [], other._format.query
    other._format.progress = 16  # another format tells more turns, and numbers them; here those that are left
    other._format.query = lambda skills, told, turns, now, before: asked.append((len(turns), before)) or []
    other._whole_query()
    other._format.query = query
    assert asked == [(1, 11)]
    other.finish_task(Finished("Get the mug", True, 12), None)
    done = [segment for segment in other.session.store if segment.category == "history"]
    assert len(done) == 12


def test_a_plan_that_fails_forgets_nothing_that_was_in_vain(engine: Engine, tokenizer: PreTrainedTokenizerFast) -> None:
    def third(fails: bool) -> str:
        planner = begun(make(engine, tokenizer))
        for _ in range(2):  # nothing changes
            planner.feedback(planner.decide(SKILLS, {}).skill, True, "")
        if fails:
            with pytest.raises(RuntimeError), planner.whole():
                planner.ready()
                raise RuntimeError("a plan that fails")
        return planner.decide(SKILLS, {}).skill

    assert third(True) == third(False)
