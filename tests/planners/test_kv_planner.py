from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch
from transformers import PreTrainedTokenizerFast as Tokens
from transformers import Qwen2Config

from eval.fidelity.deviation import PlannerGroup
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
from planners.base import Decision, TaskResult
from planners.kv_planner import GOAL_TOKENS, KVPlanner
from planners.prompts.formats import Example, LotaFormat, PlainFormat
from planners.prompts.styles import FactRecord
from planners.prompts.text import PROGRESS, Turn
from planners.tiny.tokenizer import BOS, PAD, UNK, train_tokenizer

SKILLS = ("go to cabinet 1", "go to cabinet 2", "open cabinet 1", "done")
FACTS = (
    FactRecord("cabinet_1", "receptacle", "cabinet", states=("closed",)),
    FactRecord("cabinet_2", "receptacle", "cabinet", states=("open",)),
    FactRecord("mug_1", "object", "mug", "cabinet_2"),
    FactRecord("agent", "agent", "agent"),
)
AT_TWO = FactRecord("agent", "agent", "agent", "cabinet_2", sees=("mug_1",))
AT = "agent at cabinet_2 holding nothing there mug mug_1"
Make = Callable[..., KVPlanner]
Prompt = Callable[[Decision], list[str]]
AT_START = "agent at start holding nothing\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokens:
    texts = ["task grounded lota next failed go to open cabinet mug agent at start holding nothing hand closed\n"] * 9
    texts += ["did finished succeeded after steps done get a the first it is\n"] * 9
    inner = train_tokenizer(texts, ["mug_1", "cabinet_1", "cabinet_2"], 400)
    return Tokens(tokenizer_object=inner, bos_token=BOS, pad_token=PAD, unk_token=UNK)


@pytest.fixture(scope="module")
def engine(tokenizer: Tokens) -> Iterator[Engine]:
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=900, initializer_range=0.2,
    )  # fmt: skip
    with TransformersEngine(from_config(config, torch.float32, seed=1)) as engine:
        yield engine


@pytest.fixture
def make(engine: Engine, tokenizer: Tokens) -> Make:
    def make(
        layout: str = "memory", goals: bool = False, examples: Sequence[Example] = (), **settings: object
    ) -> KVPlanner:
        stages = (Prefix(), Nothing()) if layout == "append" else (PerSegment(), Full())
        method = MemoryMethod("test", All(), *stages, Serial(), layout=layout)
        form = PlainFormat(tokenizer, goals=goals, examples=examples)
        session = MemorySession(engine, method, CachedEncoder(HashedNgrams()), form.line, 40, form.context())
        return KVPlanner(session, form, **settings)

    return make


def start(planner: KVPlanner) -> KVPlanner:
    planner.reset("Get the mug", "grounded")
    planner.observe(FACTS)
    return planner


@pytest.fixture
def prompt(tokenizer: Tokens) -> Prompt:
    """Return a function that reads the lines of a decision's prompt."""

    def prompt(decision: Decision) -> list[str]:
        text = tokenizer.decode(decision.prefill.layout.token_ids.tolist())
        return [line.strip() for line in text.removeprefix(BOS).split("\n")]

    return prompt


def play(planner: KVPlanner, forced: bool = False) -> list[Decision]:
    """Play two turns and a third decision; if ``forced``, the planner chooses the executed skills itself."""
    skills = ("open cabinet 1", "go to cabinet 2")
    start(planner)
    decisions = [planner.decide(skills[:1] if forced else SKILLS, {})]
    planner.feedback(skills[0], False, "you are not at cabinet 1")
    decisions.append(planner.decide(skills[1:] if forced else SKILLS, {}))
    planner.feedback(skills[1], True, "")
    planner.observe([AT_TWO])
    return [*decisions, planner.decide(SKILLS, {})]


def test_golden_prompts_in_the_memory_layout(make: Make, prompt: Prompt) -> None:
    first, second, last = play(make())
    memory = ["cabinet cabinet_1 closed", "cabinet cabinet_2 open", "mug mug_1 cabinet_2"]
    task, start = "task grounded get the mug", "agent at start holding nothing"
    failed = ["next open cabinet_1", "failed you are not at cabinet_1"]
    assert prompt(first) == [*memory, task, start, "next"]
    assert prompt(second) == [*memory, task, *failed, start, "next"]
    assert prompt(last) == [*memory, task, "next go to cabinet_2", AT, "next"]


@pytest.mark.parametrize("layout", ["memory", "append"])
@pytest.mark.parametrize("message", ["", "  "])
def test_a_silent_failure_enters_the_prompt_only(make: Make, prompt: Prompt, layout: str, message: str) -> None:
    planner = start(make(layout))
    planner.decide(["open cabinet 1"], {})
    planner.feedback("open cabinet 1", False, message)
    lines = prompt(planner.decide(SKILLS, {}))
    failed = next(index for index, line in enumerate(lines) if line.startswith("failed"))
    assert lines[failed] == "failed it did not work" and lines[failed - 1].endswith("open cabinet_1")
    planner.finish_task(TaskResult("Get the mug", False, 1), "Open it")
    assert not planner.session.store.of("history")


def _joined(lines: list[str]) -> list[str]:
    """Remove word boundaries, since an untrained model writes pieces of words."""
    return [line.replace(" ", "").replace("##", "") for line in lines]


def test_a_transcript_only_grows(make: Make, prompt: Prompt) -> None:
    first, second, last = play(make("append"), forced=True)
    texts = [prompt(decision) for decision in (first, second, last)]
    expected = [
        *texts[0][:-1], f"next {first.extra['focus']} open cabinet_1", "failed you are not at cabinet_1",
        "agent at start holding nothing", f"next {second.extra['focus']} go to cabinet_2", AT, "next",
    ]  # fmt: skip
    assert _joined(texts[2]) == _joined(expected) and last.prefill.counts.hit_tokens > 0


def test_a_turn_has_the_focus_of_its_decision_whatever_was_executed(make: Make, prompt: Prompt) -> None:
    planner, foci = start(make("append")), []
    for choice, executed in (("go to cabinet 1", "open cabinet 1"), ("go to cabinet 2", "go to cabinet 2")):
        foci.append(planner.decide([choice], {}).extra["focus"])
        planner.feedback(executed, True, "")
    turns = _joined([line for line in prompt(planner.decide(SKILLS, {})) if line.startswith("next")])
    assert turns == _joined([f"next {foci[0]} open cabinet_1", f"next {foci[1]} go to cabinet_2", "next"])


def test_a_finished_task_becomes_memory_and_the_next_task_starts(make: Make, prompt: Prompt) -> None:
    planner = make()
    play(planner)
    planner.finish_task(TaskResult("Get the mug", True, 2), "Open it")
    lines = prompt(planner.decide(SKILLS, {}))
    assert lines[3:5] == ["did go to cabinet_2", "finished get the mug succeeded after 2 steps"]  # one skill failed
    assert lines[-3:] == ["task grounded open it", AT, "next"]


def test_memory_is_equal_in_both_layouts_and_a_transcript_repeats_no_skill(make: Make, prompt: Prompt) -> None:
    """Methods of both layouts are compared, so they choose from the same segments, without the agent's own line."""
    stores, lines = [], []
    for layout in ("memory", "append"):
        planner = make(layout)
        play(planner)
        planner.feedback("done", True, "")
        planner.finish_task(TaskResult("Get the mug", True, 3), "Open it")
        lines = prompt(planner.decide(SKILLS, {}))
        stores.append([(segment.id, segment.text, segment.last_changed) for segment in planner.session.store])
    assert stores[0] == stores[1] and ("did_2", "did go to cabinet_2\n", 3) in stores[0]
    assert "agent" not in [id for id, _, _ in stores[0]] and not any(line.startswith("did") for line in lines)
    assert lines[-5].startswith("next") and lines[-5].endswith("done")
    assert lines[-4:] == ["finished get the mug succeeded after 3 steps", "task grounded open it", AT, "next"]


def test_a_full_transcript_restarts_with_the_task_and_its_turns(make: Make, prompt: Prompt) -> None:
    planner = make("append")
    play(planner)
    lengths, turns = [0, 1], ["next open cabinet_1", "failed you are not at cabinet_1", "next go to cabinet_2"]
    while lengths[-1] > lengths[-2]:
        planner.feedback("go to cabinet 1", True, "")
        turns.append("next go to cabinet_1")
        lines = prompt(planner.decide(SKILLS, {}))
        lengths.append(len(lines))
    start = lines.index("task grounded get the mug")
    assert lines[start + 1 :] == [*turns[-PROGRESS:], AT, "next"]


def test_the_most_likely_candidate_is_chosen_repeatably(make: Make, engine: Engine, tokenizer: Tokens) -> None:
    decisions = [play(make(reduce=reduce))[2] for reduce in ("sum", "mean", "sum")]
    assert decisions[0].skill == decisions[2].skill == decisions[0].scores[0][0]
    assert [score for _, score in decisions[0].scores] == sorted((s for _, s in decisions[0].scores), reverse=True)
    ids, form = decisions[0].prefill.layout.token_ids, PlainFormat(tokenizer)
    for _ in range(form.focus("grounded")):  # the most likely tokens, one by one
        ids = torch.cat([ids, engine.forward_plain(ids)[-1].argmax()[None]])
    assert tokenizer.decode(ids[-form.focus("grounded") :].tolist()) == decisions[0].extra["focus"]
    for skill, score in decisions[0].scores:
        candidate = form.candidate(skill)
        logits = engine.forward_plain(torch.cat([ids, torch.tensor(candidate)])).log_softmax(-1)
        expected = sum(logits[len(ids) - 1 + i, token] for i, token in enumerate(candidate))
        assert score == pytest.approx(float(expected), abs=1e-3)


def test_generated_text_that_is_no_skill_falls_back_to_scoring(make: Make) -> None:
    scoring, generation = (play(make(policy=policy))[0] for policy in ("score", "generate"))
    assert generation.scores == scoring.scores  # after the same prompt, without the generated text
    assert generation.score_tokens >= scoring.score_tokens  # equal where the random model ends its line at once


class DictatedSession:
    method = SimpleNamespace(layout="memory")

    def __init__(self, ids: list[int]) -> None:
        self.store, self._ids = SegmentStore(), ids

    def reset(self) -> None:
        self.store.clear()

    def prefill(self, *_: object, **__: object) -> None:
        """Return no prompt."""

    def extend(self, _prefill: object, token_ids: list[int]) -> None:
        assert token_ids == []  # only after a focus on a line of its own

    def generate(self, _prefill: object, tokens: int, _stops: object, keep: bool = False) -> list[int]:
        return [0] * tokens if keep else self._ids


def test_a_generated_skill_is_recognised_in_the_spelling_of_its_format(tokenizer: Tokens, chat: Tokens) -> None:
    for form, text in ((PlainFormat(tokenizer), "go to cabinet_2"), (LotaFormat(chat), " go to cabinet 2")):
        ids = form.line(text)
        planner = KVPlanner(DictatedSession(ids), form, policy="generate")
        planner.reset("Get the mug", "grounded")
        decision = planner.decide(SKILLS, {})
        tokens = form.focus("grounded") + len(ids)
        assert (decision.skill, decision.scores, decision.score_tokens) == ("go to cabinet 2", (), tokens)


def test_examples_are_part_of_the_memory_from_the_start_of_every_episode(make: Make, prompt: Prompt) -> None:
    planner = make(examples=[Example("Get a cabinet.", ("go to cabinet 1", "open cabinet 1"))])
    for _ in range(2):
        lines = prompt(start(planner).decide(SKILLS, {}))
        assert lines[0] == "example get a cabinet . did go to cabinet_1 did open cabinet_1"
    assert planner.session.store.get("example_1").category == "task"


def test_futile_skills_are_not_chosen_again_unless_retry_is_set(make: Make) -> None:
    for retry in (False, True):
        planner = start(make(retry=retry))
        attempts: list[str] = []
        for _ in SKILLS:
            skill = planner.decide(SKILLS, {}).skill
            assert retry or skill not in attempts
            planner.feedback(skill, False, "no")
            attempts.append(skill)
        assert (set(attempts) == set(SKILLS)) is not retry
        assert planner.decide(SKILLS, {}).skill in SKILLS  # no other skill is left


def test_a_planner_whose_focus_names_a_target_does_not_end_the_task(make: Make) -> None:
    planner = start(make())
    for skill in SKILLS:
        decision = planner.decide(("done", skill), {})
        assert decision.skill == skill and not decision.extra["focus"].startswith("nothing")
    assert planner.decide(("done",), {}).skill == "done"  # no other skill is left


def test_reset_clears_memory_and_task(make: Make, prompt: Prompt) -> None:
    planner = make(style="linked")
    first = play(planner)[2]
    planner.finish_task(TaskResult("Get the mug", False, 2), None)
    assert prompt(play(planner)[2]) == prompt(first)


@pytest.mark.parametrize(
    ("settings", "text"),
    [({"policy": "guess"}, "score, generate"), ({"reduce": "max"}, "sum, mean"), ({"max_new_tokens": 0}, "tokens=0")],
)
def test_invalid_settings_are_refused_by_value(make: Make, settings: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make(**settings)
    with pytest.raises(ConfigError, match="no admissible skill"):
        start(make()).decide((), {})


def test_a_query_shows_the_last_turns_of_a_long_task_and_memory_the_others(make: Make, prompt: Prompt) -> None:
    planner = start(make())
    for number in range(PROGRESS + 3):
        planner.feedback("open cabinet 1" if number < 3 else "go to cabinet 2", True, "")
    lines = prompt(planner.decide(SKILLS, {}))
    assert lines.count("next go to cabinet_2") == PROGRESS
    assert lines.count("did open cabinet_1") == 3 and "next open cabinet_1" not in lines
    planner.finish_task(TaskResult("Get the mug", False, PROGRESS + 3), "again")
    lines = prompt(planner.decide(SKILLS, {}))
    assert lines.count("did go to cabinet_2") == PROGRESS


@pytest.mark.parametrize("layout", ["memory", "append"])
def test_the_model_writes_the_goal_of_an_instruction_first(make: Make, prompt: Prompt, layout: str) -> None:
    planner = make(layout, goals=True)
    first, second, last = play(planner, forced=True)
    goal = first.extra["understood"]
    assert goal and second.extra["understood"] == last.extra["understood"] == goal
    (line,) = (line for line in prompt(first) if line.startswith("task"))
    task = "get the mug goal" if layout == "append" else "goal"  # a transcript states both, once
    assert _joined([line]) == _joined([f"task grounded {task} {goal}"])
    counts = second.prefill.counts
    assert first.prefill.counts.prompt_tokens > first.prefill.layout.rows  # two prompts, both counted
    assert counts.prompt_tokens == second.prefill.layout.rows
    planner.finish_task(TaskResult("Get the mug", True, 2), "Open it")
    assert planner.state.goal == ""
    later = planner.decide(SKILLS, {})
    task = "open it goal" if layout == "append" else "goal"
    assert any(line.startswith(f"task grounded {task} ") for line in prompt(later))


def test_planners_with_a_common_transcript_share_the_goal(make: Make, engine: Engine) -> None:
    leader, follower = (make("append", goals=True) for _ in range(2))
    records = dict.fromkeys(("leader", "follower"), SimpleNamespace(add=lambda *_: None))
    group = PlannerGroup(engine, {"leader": leader, "follower": follower}, records, shared_transcript=True)
    group.reset("Get the mug", "grounded")
    group.observe(FACTS)
    leader.goal = "find mug"  # whatever the follower would have written
    group.decide(SKILLS, {})
    assert follower.state.goal == "find mug"


def test_the_goal_is_the_greedy_text_after_the_instruction(make: Make, engine: Engine, tokenizer: Tokens) -> None:
    planner, form = start(make(goals=True)), PlainFormat(tokenizer, goals=True)
    lines = ["cabinet cabinet_1 closed", "cabinet cabinet_2 open", "mug mug_1 cabinet_2"]
    ids = torch.tensor([*form.context(), *form.line("".join(f"{line}\n" for line in lines))])
    ids = torch.cat([ids, torch.tensor(form.goal("grounded", "Get the mug"))])
    for _ in range(GOAL_TOKENS):
        following = engine.forward_plain(ids)[-1].argmax()
        if int(following) in form.stops():
            break
        ids = torch.cat([ids, following[None]])
    goal = tokenizer.decode(ids.tolist()).split(" goal ")[1]
    assert planner.decide(SKILLS, {}).extra["understood"] == " ".join(goal.lower().split())


def test_a_transcript_states_the_removal_of_an_entity(make: Make, prompt: Prompt) -> None:
    """The old line stays in a transcript, and is left out of a rebuilt prompt."""
    lines = {}
    for layout in ("memory", "append"):
        planner = start(make(layout))
        planner.decide(SKILLS, {})
        planner.feedback("go to cabinet 2", True, "")
        planner.observe([FactRecord("mug_1", "object", "mug", gone=True)])
        lines[layout] = [line for line in prompt(planner.decide(SKILLS, {})) if line.startswith("mug mug_1")]
    assert not lines["memory"]
    assert len(lines["append"]) == 2 and lines["append"][-1].replace(" ##", "").endswith("gone")


@pytest.mark.parametrize("layout", ["memory", "append"])
def test_archived_turns_of_an_endless_task_are_dropped(make: Make, layout: str) -> None:
    """The numbering in the prompt continues."""
    planner = start(make(layout))
    for number in range(12):
        planner.act()
        planner.feedback(f"go to cabinet {number % 2 + 1}", True, "")
    state = planner.state
    assert len(state.log.turns) == PROGRESS and state.log.length == 12
    assert planner._full_query() == planner._format.query(
        "grounded", "Get the mug" if layout == "append" else "get the mug", [Turn("go to cabinet 2")], AT_START, 11
    )
    clone = make(layout)
    clone.reset("Get the mug", "grounded")
    clone.load(state)
    assert clone._full_query() == planner._full_query() and clone.state == state
    calls, query = [], clone._format.query
    clone._format.progress = 16  # a format that shows more turns than the state has
    clone._format.query = lambda skills, task, turns, agent_line, earlier: calls.append((len(turns), earlier)) or []
    clone._full_query()
    clone._format.query = query
    assert calls == [(1, 11)]
    clone.finish_task(TaskResult("Get the mug", True, 12), None)
    assert sum(segment.category == "history" for segment in clone.session.store) == 12


def test_a_transaction_that_fails_keeps_the_futile_skills(make: Make) -> None:
    def third_skill(fails: bool) -> str:
        planner = start(make())
        for _ in range(2):  # nothing changes
            planner.feedback(planner.decide(SKILLS, {}).skill, True, "")
        if fails:
            with pytest.raises(RuntimeError), planner.transaction():
                planner.prefill()
                raise RuntimeError("a plan that fails")
        return planner.decide(SKILLS, {}).skill

    assert third_skill(True) == third_skill(False)
