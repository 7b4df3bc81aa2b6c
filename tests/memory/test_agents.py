"""Agents' memories: whatever happened before, a prompt's logits are those of its own text, and of nobody else's.

Cold and hot runs of a text agree bit for bit where they consist of the same passes. Otherwise they cannot: a row that
was computed when its page was not full yet saw rows of that page as they are, in one long pass it sees them packed. So
what is served hot is compared with `Dense`, which goes through the same passes in full precision: there keys and values
of whole pages are those that come back from four bits, and the rest is transformers' own forward.
"""

from __future__ import annotations

import errno
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import CapacityError, ConfigError
from memory.agents import AgentMemories, Prompt
from memory.disk import agents as disk
from memory.disk import atomic
from memory.engine.engine import Engine
from memory.engine.extend import Extension
from memory.engine.families import tiny_model
from memory.engine.packed import BLOCK, PAGE
from memory.match import TokenizerCoder, TokenText, match, resume
from memory.quantize import PackFormat
from planners.checkpoint import BUNDLED
from planners.tokenizer import load_tokenizer
from tests.laws.prompts import relative
from tests.references.packed import Dense

EXACT = 1e-9  # float64
VERBS = ("go to", "pick up", "put down", "open", "close", "look at")
PLACES = ("fridge_1", "cabinet_1", "countertop_1", "drawer_1", "mug_1", "apple_1", "table_1")


@pytest.fixture(scope="module")
def coder() -> TokenizerCoder:
    return TokenizerCoder(load_tokenizer(BUNDLED / "tokenizer.json"))


@pytest.fixture(scope="module")
def engines(coder: TokenizerCoder) -> Iterator[list[Engine]]:
    """Two models that differ in their weights."""
    size = load_tokenizer(BUNDLED / "tokenizer.json").get_vocab_size()
    made = [
        Engine(tiny_model("qwen2", layers=2, vocab_size=size, dtype=torch.float64, seed=seed), "inline")
        for seed in (0, 1)
    ]
    yield made
    for engine in made:
        engine.close()


@pytest.fixture
def engine(engines: list[Engine]) -> Engine:
    return engines[0]


Make = Callable[..., AgentMemories]


@pytest.fixture
def make(engine: Engine, coder: TokenizerCoder, tmp_path: Path) -> Iterator[Make]:
    """Memories in a folder of their own, closed at the end."""
    made = []

    def build(**knobs: Any) -> AgentMemories:
        made.append(AgentMemories(engine, coder, **{"folder": tmp_path / "rows", **knobs}))
        return made[-1]

    yield build
    for memories in made:
        memories.close()


def lines(count: int, seed: int = 0) -> str:
    """So many lines of about four tokens."""
    chance = random.Random(seed)
    return "".join(f"{chance.choice(VERBS)} {chance.choice(PLACES)}\n" for _ in range(count))


def answer(memories: AgentMemories, prompt: Prompt) -> torch.Tensor:
    return memories.engine.extend(prompt.cache, prompt.new).logits


def say(memories: AgentMemories, agent: str, text: str, **knobs: Any) -> tuple[Prompt, torch.Tensor]:
    """A whole turn: the prompt, and its logits."""
    prompt = memories.open(agent, text)
    logits = answer(memories, prompt)
    memories.finish(prompt, **knobs)
    return prompt, logits


def cold(engine: Engine, coder: TokenizerCoder, text: str, format: PackFormat | None = None) -> torch.Tensor:
    """Logits of a text that nobody has seen before."""
    with AgentMemories(engine, coder, format or PackFormat()) as memories:
        prompt, logits = say(memories, "nobody", text)
    assert (prompt.kept, prompt.kind, prompt.origin) == (0, "miss", "cold")
    return logits


@dataclass
class Known:
    """What an agent must remember for a model: the text, and the same rows dense."""

    told: TokenText
    dense: Dense
    where: str = "hot"


@dataclass
class Ledger:
    """A dictionary beside the memories: every turn is checked against it."""

    memories: AgentMemories
    known: dict[tuple[str, str], Known] = field(default_factory=dict)

    def open(self, agent: str, text: str) -> tuple[Prompt, Known]:
        """A prompt, and what it must become."""
        memories = self.memories
        prompt, key = memories.open(agent, text), (agent, memories.engine.model_key)
        known = self.known.get(key)
        found = None if known is None else match(known.told, text, memories.threshold, memories.exact)
        if known is None or found is None or found.kind == "miss":
            new = Known(TokenText.of(text, memories.coder), Dense(memories.engine.plain, memories.format))
            kept, kind, origin = 0, "miss", "cold"
        else:
            told, kept = resume(known.told, found, memories.coder)
            new, kind, origin = Known(told, known.dense.copy()), found.kind, known.where
            new.dense.cut(kept)
        assert (prompt.kept, prompt.kind, prompt.origin) == (kept, kind, origin if kept else "cold")
        assert prompt.told.text == text and prompt.told.ids == new.told.ids
        assert prompt.cache.tokens == new.told.ids[:kept] and list(prompt.new) == new.told.ids[kept:]
        if known is not None and prompt.origin == "warm":
            known.where = "hot"
        return prompt, new

    def say(self, agent: str, text: str, generate: int = 0) -> Prompt:
        prompt, new = self.open(agent, text)
        logits = answer(self.memories, prompt)
        assert relative(logits, new.dense.append(prompt.new)[-1:]) < EXACT
        said = self.memories.engine.generate(prompt.cache, logits, generate) if generate else []
        for token in said:
            assert int(new.dense.logits.argmax()) == token
            new.dense.append([token])
        if said:
            new.told.extend(said, self.memories.coder)
        self.memories.finish(prompt, said)
        self.known[prompt.key] = new
        return prompt

    def text(self, agent: str) -> str:
        known = self.known.get((agent, self.memories.engine.model_key))
        return "" if known is None else known.told.text


@pytest.fixture
def ledger(make: Make) -> Ledger:
    return Ledger(make())


# -- the kinds of matches ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [5, 16, 60, 150])
def test_what_is_served_is_what_comes_back_of_the_same_passes(size: int, ledger: Ledger) -> None:
    """Exact, extended, diverging and missed prompts, with generated tokens between them."""
    text = lines(size)
    kinds = [ledger.say("a", text).kind, ledger.say("a", text).kind]
    for turn in range(4):
        text = ledger.text("a") + lines(3 + 40 * (turn == 2), turn)
        kinds.append(ledger.say("a", text, generate=turn).kind)
    text = ledger.text("a")
    kinds.append(ledger.say("a", text[: int(0.9 * len(text))] + " " + lines(4, 9)).kind)
    kinds.append(ledger.say("a", lines(size, 77)).kind)
    assert kinds == ["miss", "exact", "extend", "extend", "extend", "extend", "diverge", "miss"]


def test_the_first_prompt_is_a_miss_and_counts_nothing(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(4))
    assert (prompt.kind, prompt.origin, prompt.kept, len(prompt.new)) == ("miss", "cold", 0, len(prompt.told.ids))
    assert memories.stats()["agents"] == 0


def test_where_passes_are_the_same_so_are_the_bits(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    """A missed prompt, and one that is recomputed on purpose, are cold runs."""
    first, second = lines(40), lines(50, 1)
    memories = make(exact="recompute")
    for text, kind in ((first, "miss"), (first, "exact"), (second, "miss"), (second, "exact")):
        prompt, logits = say(memories, "a", text)
        assert (prompt.kind, prompt.kept, prompt.origin) == (kind, 0, "cold")
        assert torch.equal(logits, cold(engine, coder, text))


def test_what_goes_on_at_the_end_of_a_page_is_what_one_pass_gives(
    make: Make, engine: Engine, coder: TokenizerCoder
) -> None:
    """There both runs see the same rows packed; only the order of sums differs."""
    memories, text = make(), ""
    while len(coder.encode(text).ids) < 2 * PAGE:
        text += "a\n"
    assert len(coder.encode(text).ids) == 2 * PAGE
    say(memories, "a", text)
    for more in (text + lines(10), text + lines(10) + lines(30)):
        prompt, logits = say(memories, "b", text)
        prompt, logits = say(memories, "b", more)
        assert prompt.kept == 2 * PAGE
        assert relative(logits, cold(engine, coder, more)) < EXACT
        memories.forget("b")


def test_four_bits_are_near_to_all_of_them(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    """What the ledger calls right is near to a plain forward as well, and eight bits are nearer."""
    text = lines(150)
    errors = []
    for bits in (4, 8):
        memories = make(format=PackFormat(bits), folder=None)
        say(memories, "a", text[:2000])
        _, logits = say(memories, "a", text)
        errors.append(relative(logits, engine.forward_plain(torch.tensor(coder.encode(text).ids))[-1:]))
    assert errors[1] < 0.05 and errors[1] < errors[0] < 0.5


def test_tokens_in_front_that_are_no_text(make: Make, engine: Engine) -> None:
    memories = make(start=(1,))
    text = lines(30)
    prompt, logits = say(memories, "a", text)
    assert prompt.new[0] == 1 and prompt.kept == 0
    expected = engine.extend(memories._new_cache(memories._speaker), prompt.told.ids).logits
    assert torch.equal(logits, expected)
    prompt, _ = say(memories, "a", text + lines(2))
    assert prompt.kept == 1 + len(memories.coder.encode(text).ids)
    prompt, _ = say(memories, "a", lines(5, 8))
    assert prompt.kept == 0 and prompt.new[0] == 1
    memories.use(engine, start=())
    prompt, logits = say(memories, "a", text)
    assert (prompt.kept, prompt.kind) == (0, "miss"), "rows behind another beginning are not these"


def test_prompts_of_nothing_are_refused(make: Make) -> None:
    memories = make()
    for _ in range(2):
        with pytest.raises(ConfigError, match="'a' says nothing"):
            memories.open("a", "")
    say(memories, "a", lines(3))
    with pytest.raises(ConfigError, match="threshold=2"):
        make(threshold=2)
    with pytest.raises(ConfigError, match="exact='never'"):
        make(exact="never")


def test_generated_tokens_may_bring_their_text(make: Make) -> None:
    memories = make()
    text = lines(10) + "next: "
    prompt = memories.open("a", text)
    said = "go to  fridge_1\n"  # two spaces, which these tokens do not say
    ids = memories.coder.encode(said).ids
    answer(memories, prompt)
    memories.engine.extend(prompt.cache, ids)
    memories.finish(prompt, ids, said)
    prompt, _ = say(memories, "a", text + said + lines(1))
    assert prompt.kind == "extend" and prompt.kept == len(memories.coder.encode(text).ids) + len(ids)


# -- prompts under way -------------------------------------------------------------------------------------------------


def test_an_agents_prompts_come_one_after_another(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(4))
    with pytest.raises(ConfigError, match="'a' has a prompt under way: finish or abandon it"):
        memories.open("a", lines(4))
    memories.open("b", lines(4))
    memories.abandon(prompt)
    again = memories.open("a", lines(4))
    memories.abandon(prompt)  # is not under way any more: nothing
    answer(memories, again)
    memories.finish(again)
    for ended in (prompt, again):
        with pytest.raises(ConfigError, match="'a' is not under way"):
            memories.finish(ended)


def test_who_abandons_a_prompt_remembers_what_was_before(ledger: Ledger, engine: Engine) -> None:
    memories, text = ledger.memories, lines(100)
    ledger.say("a", text)
    for new in (text + lines(80), text, text[:-30] + lines(9, 1), lines(40, 5)):
        for computed in (0, 3, None):
            prompt, _ = ledger.open("a", new)
            if computed != 0:
                engine.extend(prompt.cache, prompt.new[:computed])
            memories.abandon(prompt)
    with pytest.raises(RuntimeError, match="on purpose"), memories.turn("a", text + lines(5)) as prompt:
        answer(memories, prompt)
        raise RuntimeError("on purpose")
    with memories.turn("a", text + lines(6)):
        pass
    ledger.say("a", text + lines(7))
    with memories.turn("a", text + lines(7) + lines(1, 1)) as prompt:
        answer(memories, prompt)
        memories.finish(prompt)
    assert memories.open("a", text + lines(7) + lines(1, 1)).kind == "exact"


def test_a_prefill_that_fails_blocks_nobody(ledger: Ledger, engine: Engine) -> None:
    """The pass ends in its second layer; the caller may still hold, and even use, the cache of the old prompt."""
    ledger.say("a", lines(30))
    more = lines(30) + lines(60, 2)

    def stop(*_: object) -> None:
        raise RuntimeError("on purpose")

    handle = engine.decoder.layers[1].register_forward_pre_hook(stop)
    with pytest.raises(RuntimeError, match="on purpose"), ledger.memories.turn("a", more) as prompt:
        answer(ledger.memories, prompt)
    handle.remove()
    ledger.say("a", more)
    engine.extend(prompt.cache, prompt.new[:70])
    ledger.say("a", more + lines(2))


def test_what_was_cancelled_is_remembered_as_far_as_it_was_computed(ledger: Ledger, engine: Engine) -> None:
    text = lines(60)
    prompt, new = ledger.open("a", text)
    ids = torch.tensor(prompt.new)
    Extension(engine.decoder, prompt.cache, ids)  # not a step of it
    engine.extend(prompt.cache, ids[:100])
    ledger.memories.finish(prompt)
    new.dense.append(prompt.new[:100])
    ledger.known[prompt.key] = Known(new.told.first(100), new.dense)
    assert ledger.say("a", text).kept == 100
    prompt = ledger.memories.open("b", text)
    ledger.memories.finish(prompt)  # nothing of it was computed
    assert ledger.say("b", text).kept == 0


def test_rows_of_other_tokens_than_were_told_are_left_out(make: Make, coder: TokenizerCoder) -> None:
    """Also where there are as many of them: an end of turn that was said, but never computed, or computed otherwise."""
    memories, text = make(), lines(20)
    said = coder.encode("go to fridge_1\n").ids
    for told, kept in ((said, 3), ([*said[:2], said[0], said[3]], 2), ([*said, 7], 4), ([], 0), (said[:1], 1)):
        prompt = memories.open("a", text)
        answer(memories, prompt)
        memories.engine.extend(prompt.cache, [*said[:3], 9] if told == said else said)
        memories.finish(prompt, told)
        held = memories._hot[prompt.key]
        assert held.cache.tokens == held.told.ids == [*coder.encode(text).ids, *told[:kept]]
        memories.forget("a")


def test_tokens_that_cannot_be_decoded_end_the_prompt(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(3))
    answer(memories, prompt)
    with pytest.raises(OverflowError):
        memories.finish(prompt, [-5])
    assert say(memories, "a", lines(3))[0].kind == "miss"


BAD = ("", ".", "..", "../b", "a/b", "a\\b", "a b", "é", "con", "a\0", "x" * 65, "A-0/", "*")


@pytest.mark.parametrize("agent", BAD)
def test_agents_named_badly(agent: str, make: Make, tmp_path: Path) -> None:
    """With a folder or without one, whatever is asked; nothing is left behind."""
    for memories in (make(), make(folder=None)):
        memories.share("house", "the house\n")
        for call in (
            lambda m: m.open(agent, "text\n"), lambda m: m.behind(agent, "house"), lambda m: m.forget(agent),
            lambda m: m.pin(agent), lambda m: m.pin(agent, False),
        ):  # fmt: skip
            with pytest.raises(ConfigError, match="no safe name"):
                call(memories)
        assert memories.stats()["agents"] == 0
    assert {file.name for file in (tmp_path / "rows").glob("*")} <= {"index.json"}


# -- nobody reads another's rows ---------------------------------------------------------------------------------------


def test_agents_with_equal_texts_share_nothing(ledger: Ledger) -> None:
    """Names that differ in upper case, begin alike, or look like a file's name."""
    text = lines(90)
    names = ("a", "A", "a-", "a.b", "ab", disk.agent_path(Path(), "a", "m").name.split(".")[0])
    for name in names:
        assert ledger.say(name, text).origin == "cold"
    for name in names:
        assert ledger.say(name, text + lines(2)).origin == "hot"
    held = [ledger.memories._hot[name, ledger.memories.engine.model_key].cache for name in names]
    places = [extent.k.codes.untyped_storage().data_ptr() for cache in held for extent in cache.extents]
    assert len(set(places)) == len(places)
    for cache in held:
        assert len({id(cache.open) for cache in held}) == len(held)


def test_a_file_with_another_owner_is_never_served(make: Make, engine: Engine, tmp_path: Path) -> None:
    memories, text = make(), lines(90)
    say(memories, "mine", text)
    memories.flush()
    folder = tmp_path / "rows"
    mine = disk.agent_path(folder, "mine", engine.model_key)
    shutil.copy(mine, disk.agent_path(folder, "other", engine.model_key))
    shutil.copy(mine, disk.agent_path(folder, "mine", "other model"))
    fresh = make()
    prompt = fresh.open("other", text)
    assert (prompt.origin, prompt.kept) == ("cold", 0)
    assert len(fresh.damaged) == fresh.stats()["damaged"] == 1 and "'mine'" in fresh.damaged[0]


def test_a_prompts_cache_is_nobody_elses(ledger: Ledger, engine: Engine) -> None:
    """An agent that goes on in an old prompt's cache changes neither its own memory nor what is written of it."""
    first = ledger.say("a", lines(70))
    second = ledger.say("a", lines(70) + lines(30, 1))
    for prompt in (first, second):
        fork = prompt.cache.fork()
        fork.cut(20)
        engine.extend(fork, list(range(200)))
    ledger.say("a", lines(70) + lines(30, 1) + lines(3))


# -- hot and warm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("keys", ["token", "channel"])
def test_a_warm_restart_gives_the_same_bits(bits: int, keys: Any, make: Make) -> None:
    memories = make(format=PackFormat(bits, keys=keys))
    texts = {agent: lines(count, count) for agent, count in (("a", 3), ("b", 16), ("c", 40), ("d", 130))}
    for agent, text in texts.items():
        say(memories, agent, text)
        say(memories, agent, text + lines(2))
    memories.flush()
    fresh = make(format=PackFormat(bits, keys=keys))
    for agent, text in texts.items():
        for more in (text + lines(2), text + lines(2) + lines(1, 1), text[: int(0.95 * len(text))], lines(2, 8)):
            hot, expected = say(memories, agent, more, persist=False)
            warm, found = say(fresh, agent, more, persist=False)
            assert torch.equal(found, expected)
            assert (warm.kept, warm.kind) == (hot.kept, hot.kind) and warm.told.to_json() == hot.told.to_json()
    assert not fresh.damaged


def test_a_mapped_file_is_gone_when_its_rows_are(make: Make, tmp_path: Path) -> None:
    """Rows of a file that is evicted, or replaced by later ones, stay what they were."""
    memories, text = make(), lines(150)
    say(memories, "a", text)
    memories.flush()
    fresh = make()
    prompt = fresh.open("a", text + lines(2))
    assert prompt.origin == "warm"
    say(memories, "a", lines(9))
    memories.flush()
    disk.evict(tmp_path / "rows", 0)
    expected = cold(memories.engine, memories.coder, text)
    del expected
    first = answer(fresh, prompt)
    fresh.finish(prompt)
    again, _ = say(fresh, "a", text + lines(2) + lines(3, 1))
    assert again.origin == "hot" and bool(first.isfinite().all())


def test_another_format_or_tokenizer_is_another_memory(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    memories, text = make(), lines(80)
    say(memories, "a", text)
    memories.flush()
    assert make(format=PackFormat(8)).open("a", text).origin == "cold"
    assert make(start=(1,)).open("a", text).origin == "cold"

    class Other(TokenizerCoder):
        seams = "any"

        def __init__(self) -> None:
            self._tokenizer, self._anchors, self._lead = coder._tokenizer, coder._anchors, coder._lead

    assert AgentMemories(engine, Other(), folder=memories.folder).open("a", text).origin == "cold"
    prompt = make().open("a", text)
    assert prompt.origin == "warm"


def test_changing_the_model_keeps_the_old_rows_and_never_serves_them(
    make: Make, engines: list[Engine], coder: TokenizerCoder
) -> None:
    memories = make()
    ledger, text = Ledger(memories), lines(90)
    memories.share("house", lines(70, 5))
    memories.behind("b", "house")
    for number in (0, 1, 0, 1, 0):
        memories.use(engines[number])
        prompt = ledger.say("a", text)
        assert prompt.model == engines[number].model_key
        text += lines(1, number)
        begun, _ = say(memories, "b", lines(70, 5) + lines(3))
        assert begun.model == prompt.model and begun.kept > 0
    assert len({key[1] for key in ledger.known}) == 2 and memories.stats()["agents"] == 4
    under_way = memories.open("a", text)
    memories.use(engines[1])
    other = memories.open("a", text)
    engines[0].extend(under_way.cache, under_way.new)
    memories.finish(under_way)
    memories.finish(other)
    memories.close()
    fresh = make()
    assert fresh.open("a", text).origin == "warm"
    fresh.use(engines[1])
    assert fresh.open("a", text).origin == "warm"


def test_what_is_shared_is_encoded_once_a_model(make: Make, engines: list[Engine]) -> None:
    computed: list[int] = []
    handles = [
        engine.decoder.layers[0].register_forward_pre_hook(lambda _, inputs: computed.append(inputs[0].shape[1]))
        for engine in engines
    ]
    memories, text = make(), lines(200, 5)
    whole = len(memories.coder.encode(text).ids)
    memories.share("house", text)
    assert sum(computed) == whole
    alone = memories.stats()["bytes"]
    for number in range(10):
        memories.behind(f"a{number}", "house")
        prompt, _ = say(memories, f"a{number}", text + lines(3, number))
        assert (prompt.origin, prompt.kept) == ("shared", whole)
    new = sum(computed) - whole
    assert new < 10 * 20, "nothing of the shared text was computed again"
    block = memories.engine.spec.bytes_per_token * (BLOCK + 2 * PAGE)
    assert memories.stats()["bytes"] < alone + 10 * block
    computed.clear()
    for number in (1, 0, 1):
        memories.use(engines[number])
    assert sum(computed) == whole
    memories.use(engines[0])
    assert sum(computed) == whole
    for handle in handles:
        handle.remove()


def test_what_is_shared_stays_what_it_is(make: Make, engine: Engine) -> None:
    """Agents behind it give the bits that they would give alone, and nobody's rows are among another's."""
    memories, text = make(), lines(200, 5)
    memories.share("house", text)
    rows = memories._shared["house", engine.model_key].cache
    before = [x.clone() for e in rows.extents for side in (e.k, e.v) for x in side.tensors]
    lonely = make(folder=None)
    chance = random.Random(0)
    for turn in range(6):
        for agent in ("a", "b", "c"):
            if turn == 0:
                memories.behind(agent, "house")
                say(lonely, agent, text)
            more = text[: len(text) - chance.randrange(40)] + lines(1 + 9 * turn, turn * ord(agent))
            found, expected = say(memories, agent, more)[1], say(lonely, agent, more)[1]
            assert torch.equal(found, expected)
    after = [x for e in rows.extents for side in (e.k, e.v) for x in side.tensors]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert rows.next_position == len(memories.coder.encode(text).ids)
    private = [
        {e.k.codes.data_ptr() for e in memories._hot[agent, engine.model_key].cache.extents}
        - {e.k.codes.data_ptr() for e in rows.extents}
        for agent in "abc"
    ]
    assert not private[0] & private[1] and not private[1] & private[2] and not private[0] & private[2]
    stranger = memories.open("d", text)
    assert (stranger.origin, stranger.kept) == ("cold", 0), "who is not behind it does not see it"
    with pytest.raises(ConfigError, match="nothing is shared as 'garden'; shared is: house"):
        memories.behind("d", "garden")


def test_an_agent_whose_memory_does_not_serve_begins_with_what_is_shared(make: Make) -> None:
    memories, house = make(), lines(100, 5)
    memories.share("house", house)
    memories.behind("a", "house")
    own = lines(50, 6)
    origins = [say(memories, "a", text)[0].origin for text in (own, own, house + lines(3), own, house + lines(2))]
    assert origins == ["cold", "hot", "shared", "cold", "shared"]
    memories.share("house", lines(20, 9))
    prompts = [say(memories, "a", text)[0] for text in (lines(20, 9) + "go to\n", house)]
    assert [prompt.origin for prompt in prompts] == ["shared", "cold"]


# -- budgets -----------------------------------------------------------------------------------------------------------


def size_of(memories: AgentMemories, agent: str) -> int:
    return memories._hot[agent, memories.engine.model_key].cache.nbytes


def hot(memories: AgentMemories) -> list[str]:
    return [key[0] for key in memories._hot]


def test_the_least_recently_used_go_first_but_for_those_below_their_quota(make: Make) -> None:
    probe = make(folder=None)
    for agent, count in (("big", 150), ("small", 20)):
        say(probe, agent, lines(count))
    big, small = size_of(probe, "big"), size_of(probe, "small")
    memories = make(host_bytes=2 * big + 3 * small, quota_bytes=small)
    ledger = Ledger(memories)
    for agent, count in (("s1", 20), ("b1", 150), ("s2", 20), ("b2", 150), ("s3", 20)):
        ledger.say(agent, lines(count))
    assert hot(memories) == ["s1", "b1", "s2", "b2", "s3"]
    ledger.say("b1", lines(150))
    ledger.say("b3", lines(150))
    assert hot(memories) == ["s1", "s2", "s3", "b1", "b3"], "b2 was the least recently used above its quota"
    ledger.known["b2", memories.engine.model_key].where = "warm"
    ledger.say("b2", lines(150) + lines(1))
    assert hot(memories) == ["s1", "s2", "s3", "b3", "b2"]
    memories.pin("b3")
    ledger.known["b1", memories.engine.model_key].where = "warm"
    ledger.say("b1", lines(150))
    assert hot(memories) == ["s1", "s2", "s3", "b3", "b1"]
    assert memories.stats()["bytes"] <= memories.host_bytes
    memories.host_bytes = big + small
    memories.pin("b3", False)
    with pytest.raises(CapacityError, match="bytes are shared, pinned or within their quota, but host_bytes="):
        memories.quota_bytes = big * 2
        ledger.say("b3", lines(150))
    assert "b3" not in hot(memories), "in the end it is who asks that goes"
    assert {entry.agent for entry in disk.entries(memories.folder)} >= {"s1", "s2", "s3", "b1", "b2", "b3"}


def test_without_a_folder_what_is_put_out_is_lost(make: Make) -> None:
    memories = make(folder=None, host_bytes=1)
    assert say(memories, "a", lines(9))[0].origin == "cold"
    assert hot(memories) == [] and say(memories, "a", lines(9))[0].origin == "cold"
    memories.flush()
    assert memories.stats() == {"agents": 0, "bytes": 0, "disk_bytes": 0, "damaged": 0, "failed": 0}


def test_who_has_a_prompt_under_way_stays(make: Make) -> None:
    memories = make(host_bytes=1)
    ledger = Ledger(memories)
    ledger.say("a", lines(50))
    ledger.known["a", memories.engine.model_key].where = "warm"
    prompt, new = ledger.open("a", lines(50) + lines(3))
    ledger.say("b", lines(50))
    assert hot(memories) == ["a"]
    assert relative(answer(memories, prompt), new.dense.append(prompt.new)[-1:]) < EXACT
    memories.finish(prompt)
    assert hot(memories) == []


def test_not_to_persist_is_to_write_when_there_is_no_room(make: Make, engine: Engine, tmp_path: Path) -> None:
    memories, text = make(), lines(60)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    say(memories, "a", text, persist=False)
    memories._warm.wait()
    assert not path.exists()
    memories.host_bytes = 1
    say(memories, "b", text, persist=False)
    assert path.exists() and hot(memories) == []
    memories.host_bytes = None
    assert say(memories, "a", text, persist=False)[0].origin == "warm"
    memories.flush()
    state = path.stat().st_mtime_ns
    memories.flush()
    assert path.stat().st_mtime_ns == state, "nothing has changed"


def test_the_disk_has_a_budget_of_its_own(make: Make, tmp_path: Path) -> None:
    memories = make()
    for agent in "abc":
        say(memories, agent, lines(60))
        memories.flush()
    one = memories.stats()["disk_bytes"] // 3
    memories.close()
    memories = make(disk_bytes=2 * one + one // 2)
    memories.flush()
    left = {entry.agent for entry in disk.entries(tmp_path / "rows")}
    assert left == {"b", "c"}
    memories.pin("b")
    for agent in "def":
        say(memories, agent, lines(60))
        memories.flush()
    assert {entry.agent for entry in disk.entries(tmp_path / "rows")} == {"b", "f"}
    assert memories.stats()["disk_bytes"] <= memories.disk_bytes


@dataclass
class Clock:
    """The real one, put forward."""

    ahead: float = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def test_rows_are_forgotten_in_time_on_the_disk_too(make: Make, tmp_path: Path) -> None:
    clock, text = Clock(), lines(60)
    memories = make(ttl_seconds=100, clock=clock)
    for agent in ("a", "b", "pinned"):
        say(memories, agent, text)
    memories.pin("pinned")
    memories.flush()
    clock.ahead = 60
    assert say(memories, "b", text)[0].origin == "hot"
    memories.flush()
    clock.ahead = 130
    assert say(memories, "a", text, persist=False)[0].origin == "cold"
    assert say(memories, "pinned", text, persist=False)[0].origin == "hot"
    memories.close()
    clock.ahead = 150
    fresh = make(ttl_seconds=100, clock=clock)
    fresh.pin("pinned")
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["warm", "warm", "warm"]
    clock.ahead = 400
    fresh = make(ttl_seconds=100, clock=clock)
    assert [fresh.open(agent, text).origin for agent in ("a", "b", "pinned")] == ["cold"] * 3
    fresh._warm.wait()
    assert disk.entries(tmp_path / "rows") == []


def test_a_pin_outlives_the_time_on_the_disk(make: Make) -> None:
    clock, text = Clock(), lines(60)
    memories = make(clock=clock)
    say(memories, "a", text)
    memories.close()
    clock.ahead = 1000
    fresh = make(clock=clock, ttl_seconds=100, pinned=["a"])
    fresh.flush()
    assert fresh.open("a", text).origin == "warm"
    clock.ahead = 2000
    fresh = make(clock=clock, ttl_seconds=100)
    fresh.flush()
    assert fresh.open("a", text).origin == "cold"


# -- forgetting --------------------------------------------------------------------------------------------------------


def test_forgetting_takes_all_of_an_agent_and_nothing_of_others(make: Make, engines: list[Engine]) -> None:
    memories, text = make(), lines(60)
    for engine in engines:
        memories.use(engine)
        for agent in ("a", "A", "a-b"):
            say(memories, agent, text)
    prompt = memories.open("a", text + lines(1))
    answer(memories, prompt)
    memories.forget("a")
    with pytest.raises(ConfigError, match="'a' is not under way"):
        memories.finish(prompt)
    memories.abandon(prompt)
    memories.flush()
    assert {entry.agent for entry in disk.entries(memories.folder)} == {"A", "a-b"}
    for engine in engines:
        memories.use(engine)
        assert say(memories, "a", text)[0].origin == "cold"
        assert say(memories, "A", text)[0].origin == "hot"


def test_what_waits_to_be_written_is_forgotten_as_well(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = make()
    memories._warm.wait()
    gate, real = threading.Event(), disk.save_agent

    def slow(*arguments: Any) -> Path:
        gate.wait(30)
        return real(*arguments)

    monkeypatch.setattr(disk, "save_agent", slow)
    for agent in ("a", "b", "b"):
        say(memories, agent, lines(40))
    done = ThreadPoolExecutor(1).submit(lambda: [memories.forget(agent) for agent in "ba"])
    time.sleep(0.05)
    assert not done.done(), "a is just being written"
    gate.set()
    done.result(30)
    memories.flush()
    assert disk.entries(memories.folder) == []
    assert say(memories, "a", lines(40))[0].origin == "cold"


def test_who_was_forgotten_while_a_prompt_was_opened_stays_forgotten(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows had been read before; meanwhile the agent was forgotten, and began anew."""
    with make() as memories:
        say(memories, "a", lines(40))
    memories, forgotten = make(), []
    real = memories._warm.get

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        if not forgotten:
            forgotten.append("a")
            memories.forget("a")
            say(memories, "a", lines(20, 1))
        return found

    monkeypatch.setattr(memories._warm, "get", slow)
    with pytest.raises(ConfigError, match="'a' is not under way"):
        memories.open("a", lines(40))
    assert memories.open("a", lines(40)).kind == "miss"


def test_who_is_just_being_put_out_of_memory_is_waited_for(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    memories._warm.wait()
    gate, real = threading.Event(), disk.save_agent
    monkeypatch.setattr(disk, "save_agent", lambda *arguments: gate.wait(30) and real(*arguments))
    memories.host_bytes = 1
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(say, memories, "a", text)
        while memories._hot or memories._warm._writer._done(("a", memories.engine.model_key)):
            time.sleep(0.01)
        second = pool.submit(memories.open, "a", text)
        time.sleep(0.05)
        assert not first.done() and not second.done()
        gate.set()
        assert (second.result(30).origin, first.result(30)[0].origin) == ("warm", "cold")


# -- damage and errors -------------------------------------------------------------------------------------------------


def damaged(memories: Make, path: Path, raw: bytes, text: str) -> Prompt:
    """A prompt over a damaged file: it is reported, and the agent begins anew."""
    path.write_bytes(raw)
    fresh = memories()
    prompt = fresh.open("a", text)
    assert (prompt.origin, prompt.kept, prompt.kind) == ("cold", 0, "miss")
    assert len(fresh.damaged) == 1 and str(path) in fresh.damaged[0]
    fresh.abandon(prompt)
    return prompt


def flip_and_cut(make: Make, engine: Engine, times: int, tmp_path: Path) -> None:
    text = lines(160)
    with make() as memories:
        say(memories, "a", text)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    raw, chance = path.read_bytes(), random.Random(5)
    for number in range(times):
        if number % 2:
            copy = raw[: chance.randrange(len(raw))]
        else:
            copy = bytearray(raw)
            bit = chance.randrange(8 * len(raw))
            copy[bit // 8] ^= 1 << bit % 8
        damaged(make, path, bytes(copy), text)
    path.write_bytes(raw)
    assert make().open("a", text).origin == "warm"


def test_every_flip_and_every_cut_is_found(make: Make, engine: Engine, tmp_path: Path) -> None:
    flip_and_cut(make, engine, 50, tmp_path)


@pytest.mark.slow
def test_a_thousand_flips_and_cuts_are_found(make: Make, engine: Engine, tmp_path: Path) -> None:
    flip_and_cut(make, engine, 1000, tmp_path)


def test_a_damaged_file_is_reported_and_the_agent_served_cold(
    make: Make, engine: Engine, coder: TokenizerCoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = lines(100)
    with make() as memories:
        for agent in "ab":
            say(memories, agent, text)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    path.write_bytes(path.read_bytes()[:-9])
    memories = make()
    _, logits = say(memories, "a", text)
    assert torch.equal(logits, cold(engine, coder, text))
    assert "agent 'a' cannot be used and is computed anew" in caplog.text
    assert memories.stats()["damaged"] == 1 and say(memories, "b", text)[0].origin == "warm"
    memories.close()
    assert make().open("a", text).origin == "warm", "it was written anew"


def test_a_sound_file_that_holds_something_else_is_ignored(make: Make, engine: Engine, tmp_path: Path) -> None:
    text = lines(30)
    with make() as memories:
        say(memories, "a", text)
    path = disk.agent_path(tmp_path / "rows", "a", engine.model_key)
    header = dict(disk.open_agent(tmp_path / "rows", "a", engine.model_key).header)
    for name in ("agent", "model", "tokens"):
        del header[name]
    for wrong in ({}, header | {"told": None}, header | {"told": {"text": 3}}, header | {"format": {"bits": 5}}):
        disk.save_agent(tmp_path / "rows", "a", engine.model_key, 3, {}, wrong)
        damaged(make, path, path.read_bytes(), text)


def test_what_cannot_be_written_is_written_later(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk disturbs no turn; flush says so, and writes when there is room again."""
    memories, text = make(), lines(40)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        say(memories, "a", text)
        say(memories, "b", text)
        memories._warm.wait()
        assert memories.stats()["failed"] == 2 and "'a' remembers could not be written" in caplog.text
        with pytest.raises(CapacityError, match="no room for"):
            memories.flush()
        assert say(memories, "a", text + lines(2))[0].origin == "hot"
        with pytest.raises(CapacityError):
            memories.close()
    fresh = make()
    assert fresh.open("a", text).origin == "cold"
    say(fresh, "b", text)
    fresh.flush()
    assert fresh.stats()["failed"] == 0 and make().open("b", text).origin == "warm"


def full(_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_flush_tries_again(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        say(memories, "a", text)
        memories._warm.wait()
    memories.flush()
    assert memories.stats()["failed"] == 0 and make().open("a", text).origin == "warm"


def test_what_was_put_out_and_could_not_be_written_is_lost_and_said_once(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories, text = make(), lines(40)
    say(memories, "a", text)
    memories.flush()
    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        memories.host_bytes = 1
        say(memories, "a", text + lines(3))
    with pytest.raises(CapacityError):
        memories.flush()
    memories.flush()
    prompt = memories.open("a", text + lines(3))
    assert (prompt.origin, prompt.kind) == ("warm", "extend"), "what had been written before is still there"


def test_a_disk_that_cannot_be_read_is_no_memory(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with make() as memories:
        say(memories, "a", lines(40))
    fresh = make()

    def broken(*_: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(disk, "open_agent", broken)
    assert fresh.open("a", lines(40)).origin == "cold" and "Too many" in fresh.damaged[0]


def test_after_closing(make: Make) -> None:
    memories = make()
    say(memories, "a", lines(4))
    memories.close()
    memories.close()
    with pytest.raises(ConfigError, match="are closed"):
        say(memories, "a", lines(4))


# -- threads -----------------------------------------------------------------------------------------------------------


def test_a_writer_that_is_slow_delays_nobody_and_writes_the_newest(
    make: Make, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = make()
    memories._warm.wait()
    gate, real, written = threading.Event(), disk.save_agent, []

    def slow(*arguments: Any) -> Path:
        gate.wait(30)
        written.append((arguments[1], arguments[3]))
        return real(*arguments)

    monkeypatch.setattr(disk, "save_agent", slow)
    ledger = Ledger(memories)
    for turn in range(5):
        for agent in "ab":
            ledger.say(agent, lines(20) + lines(4 * turn, 1))
    gate.set()
    memories.flush()
    last = {agent: len(ledger.known[agent, engine.model_key].told.ids) for agent in "ab"}
    assert len(written) <= 4 and dict(written) == last, "what waited was replaced by what came later"
    fresh = Ledger(make(), ledger.known)
    for known in ledger.known.values():
        known.where = "warm"
    for agent in "ab":
        fresh.say(agent, ledger.text(agent) + lines(1, 2))


def test_many_threads(make: Make, engine: Engine) -> None:
    """Eight threads with two agents each, a budget for some of them, forgetting and flushing between: no wrong row."""
    probe = make(folder=None)
    say(probe, "a", lines(60))
    memories = make(host_bytes=6 * size_of(probe, "a"))
    memories.share("house", lines(40, 5))

    def live(number: int) -> int:
        chance, warm = random.Random(number), 0
        known: dict[str, str] = {}
        for turn in range(12):
            agent = f"{number}-{chance.randrange(2)}"
            if turn == 0:
                memories.behind(agent, "house")
            text = known.get(agent, lines(40, 5) if chance.random() < 0.5 else lines(30, number))
            text += lines(1 + chance.randrange(9), turn)
            prompt = memories.open(agent, text)
            warm += prompt.origin == "warm"
            assert prompt.cache.tokens == prompt.told.ids[: prompt.kept] and prompt.told.text == text
            if known.get(agent):
                assert prompt.kept >= len(memories.coder.encode(known[agent]).ids)
            with pytest.raises(ConfigError, match="under way"):
                memories.open(agent, text)
            found = answer(memories, prompt)
            if prompt.kept == 0:
                same = engine.extend(memories._new_cache(memories._speaker), prompt.told.ids).logits
                assert torch.equal(found, same)
            what = chance.random()
            if what < 0.1:
                memories.abandon(prompt)
            elif what < 0.2:
                memories.forget(agent)
                known.pop(agent, None)
            else:
                memories.finish(prompt)
                known[agent] = text
            if what > 0.9:
                memories.flush()
        return warm

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(live, range(8))) > 0
    memories.flush()
    assert memories.stats()["bytes"] <= memories.host_bytes and not memories._under_way
    assert memories.stats()["damaged"] == memories.stats()["failed"] == 0


# -- whatever happens --------------------------------------------------------------------------------------------------

agents_ = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), agents_, st.integers(1, 25)),
        st.tuples(st.just("edit"), agents_, st.floats(0, 1)),
        st.tuples(st.just("again"), agents_, st.just(0)),
        st.tuples(st.just("other"), agents_, st.integers(1, 60)),
        st.tuples(st.just("generate"), agents_, st.integers(1, 5)),
        st.tuples(st.just("abandon"), agents_, st.integers(1, 40)),
        st.tuples(st.just("cancel"), agents_, st.integers(2, 40)),
        st.tuples(st.sampled_from(["flush", "restart", "switch", "evict", "forget"]), agents_, st.just(0)),
    ),
    min_size=4,
    max_size=16,
)


class World:
    """Memories, their ledger, and what may happen to them."""

    def __init__(self, engines: list[Engine], coder: TokenizerCoder, folder: Path, format: PackFormat) -> None:
        self.engines, self.coder, self.folder, self.format = engines, coder, folder, format
        self.ledger = Ledger(self.fresh(engines[0]))

    def fresh(self, engine: Engine) -> AgentMemories:
        return AgentMemories(engine, self.coder, self.format, self.folder)

    def extend(self, agent: str, count: int) -> None:
        self.ledger.say(agent, self.ledger.text(agent) + lines(count, count))

    def edit(self, agent: str, place: float) -> None:
        text = self.ledger.text(agent)
        at = round(place * len(text))
        self.ledger.say(agent, f"{text[:at]} mug_1 {text[at + 3 :]}")

    def again(self, agent: str, _: int) -> None:
        self.ledger.say(agent, self.ledger.text(agent) or "go\n")

    def other(self, agent: str, count: int) -> None:
        self.ledger.say(agent, lines(count, 100 + count))

    def generate(self, agent: str, count: int) -> None:
        self.ledger.say(agent, self.ledger.text(agent) + "next:\n", generate=count)

    def abandon(self, agent: str, count: int) -> None:
        with self.ledger.memories.turn(agent, self.ledger.text(agent)[:count] + lines(count)) as prompt:
            known = self.ledger.known.get(prompt.key)
            if known is not None:
                known.where = "hot"  # it is looked at, whatever comes of it
            answer(self.ledger.memories, prompt)

    def cancel(self, agent: str, count: int) -> None:
        ledger = self.ledger
        prompt, new = ledger.open(agent, ledger.text(agent) + lines(count, 3))
        some = prompt.new[: len(prompt.new) // 2]
        if some:
            ledger.memories.engine.extend(prompt.cache, some)
            new.dense.append(some)
        ledger.memories.finish(prompt)
        if prompt.kept + len(some):
            ledger.known[prompt.key] = Known(new.told.first(prompt.kept + len(some)), new.dense)

    def flush(self, *_: object) -> None:
        self.ledger.memories.flush()

    def restart(self, *_: object) -> None:
        engine = self.ledger.memories.engine
        self.ledger.memories.close()
        self.ledger.memories = self.fresh(engine)
        for known in self.ledger.known.values():
            known.where = "warm"

    def switch(self, *_: object) -> None:
        old = self.ledger.memories.engine
        self.ledger.memories.use(next(engine for engine in self.engines if engine is not old))

    def evict(self, *_: object) -> None:
        self.ledger.memories.host_bytes = 0
        self.ledger.say("evicting", lines(2))
        self.ledger.memories.host_bytes = None
        for known in self.ledger.known.values():
            known.where = "warm"

    def forget(self, agent: str, _: int) -> None:
        self.ledger.memories.forget(agent)
        for key in [key for key in self.ledger.known if key[0] == agent]:
            del self.ledger.known[key]


@pytest.mark.parametrize("format", [PackFormat(), PackFormat(8, 32, "channel")], ids=["4-token", "8-channel"])
@given(steps=steps)
@settings(max_examples=40, deadline=None)
def test_whatever_happens_an_agent_remembers_its_own_text(
    steps: list, format: PackFormat, engines: list[Engine], coder: TokenizerCoder, tmp_path_factory: Any
) -> None:
    world = World(engines, coder, tmp_path_factory.mktemp("world"), format)
    try:
        for what, agent, size in steps:
            getattr(world, what)(agent, size)
        for agent in "abc":
            world.extend(agent, 2)
        assert not world.ledger.memories.damaged
    finally:
        world.ledger.memories.close()
