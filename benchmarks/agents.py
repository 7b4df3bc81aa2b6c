"""Savings by agents' memories: hot, warm and cold prompts, matching by text or tokens, peaks, and how many agents fit.

    python -m benchmarks.agents [--threads N] [--repeats N] [--shapes planner-tiny qwen2.5-0.5b] [--tokens N ...]
        [--parts latency matching peak capacity] [--turns N] [--markdown] [--peak-tokens N] [--budget-gib N]

Random weights in bfloat16. Times are medians in milliseconds, from the text to the logits behind it: matching,
tokenising, reading and prefill. ``cold`` computes a prompt of so many tokens in chunks, ``plain`` the same without
packing, ``hot`` a short message behind it, ``exact`` the same prompt again, ``warm`` a short message behind what is
found on the disk, checked to the last bit; the file lies in the system's cache, as after a restart of the program.
Contenders of one row run one after another: take a quiet machine.

``peak``: what a prefill makes a process of its own grow by, in one pass and in chunks (needs Linux).

``matching``: the same conversation, each turn matched by text and, tokenised anew as a whole, by tokens. Replies are
``tokenised`` sentences, or tokens that are ``drawn``: no tokenizer would cut their text so.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.table import Table
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig

from eval.common.tables import show
from keep_agent.console import make_console
from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder, match_tokens
from memory.engine.base import Engine
from memory.engine.chunking import ChunkSchedule
from memory.engine.models.cache_spec import ModelCacheSpec
from memory.engine.models.load import from_config
from memory.engine.models.model_shapes import SHAPES
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import QuantizedCache

TOKENS = {"planner-tiny": (1024, 4096, 16384), "qwen2.5-0.5b": (1024, 4096, 16384)}
PARTS = ("latency", "matching", "peak", "capacity")
POSITIONS = 65536
PROGRESS = make_console(stderr=True)
COLD_TOKENS = 8192  # so many are computed cold again and again; longer prompts once
AGENT_TOKENS = 4096  # what an agent remembers, where agents are counted
MESSAGE = "Robot: the mug is in the fridge, what now?\n"
VOCABULARY = 1000
VERBS, PLACES = ("go to", "pick up", "open", "look at"), ("the fridge", "a mug", "the countertop", "cabinet 12")


def make_engine(shape: str) -> Engine:
    values = {**SHAPES[shape], "max_position_embeddings": POSITIONS}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    return TransformersEngine(from_config(config, torch.bfloat16, name=shape))


def make_coder() -> TokenizerCoder:
    """Byte-level BPE, as most models have, of our own little language."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([story(2000), MESSAGE], trainer)
    return TokenizerCoder(made)


def story(count: int, seed: int = 0) -> str:
    chance = random.Random(seed)
    return "".join(f"{chance.choice(VERBS)} {chance.choice(PLACES)} {chance.randrange(99)}\n" for _ in range(count))


def text_of(tokens: int, coder: TokenizerCoder) -> str:
    """About so many tokens of text, at the end of a line."""
    coded = coder.encode(story(tokens), first=True)
    text = story(tokens)[: coded.ends[tokens - 1]]
    return text[: text.rindex("\n") + 1]


def timed(work: Callable[[], object]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - started)


@dataclass
class Bench:
    """One model, and the folder of its agents."""

    engine: Engine
    coder: TokenizerCoder
    folder: Path
    repeats: int
    say: Callable[[str], None]

    @contextmanager
    def memories(self, warm: bool = False) -> Iterator[AgentMemories]:
        with AgentMemories(self.engine, self.coder, folder=self.folder if warm else None) as made:
            yield made

    def turn(self, memories: AgentMemories, text: str) -> float:
        """Milliseconds to the first token."""
        started = time.perf_counter()
        prompt = memories.open("agent", text)
        self.engine.extend(prompt.cache, prompt.new, ChunkSchedule())
        spent = 1e3 * (time.perf_counter() - started)
        memories.finish(prompt, persist=False)
        return spent

    def cold(self, text: str) -> float:
        with self.memories() as memories:
            return self.turn(memories, text)

    def plain(self, text: str) -> float:
        spec = self.engine.info
        pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, self.engine.device)

        def work() -> None:
            ids = self.coder.encode(text, first=True).ids
            self.engine.extend(PagedCache(pool), ids, ChunkSchedule())

        return timed(work)

    def hot(self, memories: AgentMemories, text: str) -> tuple[float, float, str]:
        """Extended and exact prompts behind ``text``, and what it has become."""
        extended, exact = [], []
        for _ in range(self.repeats + 1):
            text += MESSAGE
            extended.append(self.turn(memories, text))
            exact.append(self.turn(memories, text))
        return statistics.median(extended[1:]), statistics.median(exact[1:]), text

    def warm(self, text: str) -> float:
        """A fresh start behind what lies on the disk."""
        found = []
        for _ in range(self.repeats):
            with AgentMemories(self.engine, self.coder, folder=self.folder) as memories:
                started = time.perf_counter()
                prompt = memories.open("agent", text + MESSAGE)
                self.engine.extend(prompt.cache, prompt.new, ChunkSchedule())
                found.append(1e3 * (time.perf_counter() - started))
                assert prompt.origin == "warm" and prompt.kind == "extend", "what is measured is a warm restart"
        return statistics.median(found)

    def latency(self, tokens: int) -> list[str]:
        text = text_of(tokens, self.coder)
        times = max(1, min(self.repeats, COLD_TOKENS // tokens))
        self.say(f"  {tokens} tokens: {times} x cold")
        cold = statistics.median(self.cold(text) for _ in range(times))
        plain = statistics.median(self.plain(text) for _ in range(times))
        self.say(f"  {tokens} tokens: hot and warm")
        with self.memories(warm=True) as memories:
            self.turn(memories, text)
            hot, exact, text = self.hot(memories, text)
            memories.flush()
            size = memories.stats()["disk_bytes"]
        warm = self.warm(text)
        times_faster = (f"{cold / spent:.0f}x" for spent in (hot, exact, warm))
        share = f"{100 * size / (self.engine.info.bytes_per_token * tokens):.0f} %"
        return [str(tokens), *(f"{spent:.1f}" for spent in (cold, plain, hot, exact, warm)), *times_faster, share]

    def matching(self, tokens: int, drawn: bool, turns: int) -> list[str]:
        """One conversation: the share of rows that were there already, and milliseconds, of both ways to match."""
        text, chance, cache = text_of(tokens, self.coder), random.Random(0), self.empty()
        hits, lengths, spent = ([], []), ([], []), ([], [])
        with self.memories() as memories:
            for turn in range(turns + 1):
                started = time.perf_counter()
                prompt = memories.open("agent", text)
                self.engine.extend(prompt.cache, prompt.new, ChunkSchedule())
                spent[0].append(1e3 * (time.perf_counter() - started))
                started = time.perf_counter()
                ids = self.coder.encode(text, first=True).ids
                cache.cut(min(match_tokens(cache.tokens, ids), len(ids) - 1))
                kept = cache.next_position
                self.engine.extend(cache, ids[kept:], ChunkSchedule())
                spent[1].append(1e3 * (time.perf_counter() - started))
                for own, number in ((hits[0], prompt.reused), (hits[1], kept)):
                    own.append(number)
                for own, number in ((lengths[0], len(prompt.token_text.ids)), (lengths[1], len(ids))):
                    own.append(number)
                sentence = story(2, turn)
                said = [chance.randrange(VOCABULARY) for _ in range(16)] if drawn else self.coder.encode(sentence).ids
                for each in (prompt.cache, cache):
                    self.engine.extend(each, said)
                told = prompt.token_text.first(len(prompt.token_text.ids))
                told.extend(said, self.coder, None if drawn else sentence)
                memories.finish(prompt, said, None if drawn else sentence)
                text = told.text + MESSAGE
        shares = (f"{100 * sum(own[1:]) / sum(all_[1:]):.1f} %" for own, all_ in zip(hits, lengths, strict=True))
        return [*shares, *(f"{statistics.median(own[1:]):.1f}" for own in spent)]

    def empty(self) -> QuantizedCache:
        return QuantizedCache(self.engine.info, PackFormat(), self.engine.device)


def latency(benches: Sequence[tuple[str, Bench, Sequence[int]]]) -> Table:
    names = ("cold", "plain", "hot", "exact", "warm")
    columns = *(f"{name} ms" for name in names), *(f"cold/{name}" for name in names[2:]), "file"
    caption = "file: its share of the rows' bytes in bfloat16, text included"
    table = Table("shape", "tokens", *columns, title="Hot, warm and cold", caption=caption)
    for shape, bench, lengths in benches:
        PROGRESS.print(f"latency of {shape}")
        for tokens in lengths:
            table.add_row(shape, *bench.latency(tokens))
    return table


def matching(benches: Sequence[tuple[str, Bench, Sequence[int]]], turns: int) -> Table:
    columns = "shape", "tokens", "replies", "kept by text", "by tokens", "ms by text", "ms by tokens"
    table = Table(*columns, title="By text and by tokens")
    for shape, bench, lengths in benches:
        tokens = sorted(lengths)[:2][-1]
        for drawn in (False, True):
            PROGRESS.print(f"matching of {shape}: {tokens} tokens, {turns} turns")
            row = bench.matching(tokens, drawn, turns)
            table.add_row(shape, str(tokens), "drawn" if drawn else "tokenised", *row)
    return table


def peak(shapes: Sequence[str], tokens: int, threads: int) -> Table:
    """In processes of their own, which grow as far as they have to."""
    columns = "shape", "tokens", "at once MiB", "in chunks MiB", "saved", "packed rows MiB"
    caption = "MiB by which the process grew beyond the model and a short prompt"
    table = Table(*columns, title="Peak of a prefill", caption=caption)
    for shape in shapes:
        found = []
        for how in ("whole", "chunks"):
            PROGRESS.print(f"peak of {shape}: {tokens} tokens, {how}")
            command = [sys.executable, "-m", "benchmarks.agents", "--threads", str(threads), "--peak-of", shape]
            done = subprocess.run([*command, str(tokens), how], capture_output=True, text=True, check=True)
            found.append(json.loads(done.stdout))
        whole, chunks = (one["grown"] for one in found)
        numbers = f"{whole:.0f}", f"{chunks:.0f}", f"{100 * (1 - chunks / whole):.0f} %", f"{found[0]['rows']:.0f}"
        table.add_row(shape, str(tokens), *numbers)
    return table


def peak_of(shape: str, tokens: int, how: str) -> dict[str, float]:
    """MiB a prefill makes this process grow by, and those of the rows that it leaves."""
    with make_engine(shape) as engine:
        draw = torch.randint(5, 900, (tokens,), generator=torch.Generator().manual_seed(0))
        cache = QuantizedCache(engine.info, PackFormat(), engine.device)
        engine.extend(QuantizedCache(engine.info, PackFormat(), engine.device), draw[:256])
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew: loading the model took more
        before = peak_mib()
        engine.extend(cache, draw, ChunkSchedule() if how == "chunks" else None)
        return {"grown": peak_mib() - before, "rows": cache.nbytes / (1 << 20)}


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def capacity(gib: float) -> Table:
    """By what a token takes, and how many fit."""
    columns = "shape", "fp16 B/token", "4 bit B/token", "longest fp16", "4 bit", "agents fp16", "4 bit", "more"
    caption = f"tokens of one agent, and agents of {AGENT_TOKENS} tokens, in {gib:g} GiB"
    table = Table(*columns, title="What fits", caption=caption)
    room, formats = int(gib * (1 << 30)), (None, PackFormat())
    for shape in SHAPES:
        spec = cache_spec_of(shape)
        full, few = (spec.bytes_per_token(format) for format in formats)
        longest = (f"{spec.tokens_in(room, format):,}" for format in formats)
        agents = (f"{spec.agents_in(room, AGENT_TOKENS, format):,}" for format in formats)
        table.add_row(shape, f"{full:,}", f"{few:,}", *longest, *agents, f"{full / few:.2f}x")
    return table


def cache_spec_of(shape: str) -> ModelCacheSpec:
    """Of a named shape, without building its model; none has a sliding window."""
    values = SHAPES[shape]
    layers, head_dim = values["num_hidden_layers"], values["hidden_size"] // values["num_attention_heads"]
    kinds = ("full_attention",) * layers
    return ModelCacheSpec(layers, values["num_key_value_heads"], head_dim, kinds, None, torch.float16, False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", default=list(TOKENS), choices=list(SHAPES))
    parser.add_argument("--tokens", type=int, nargs="+", help="default: 1024, 4096, 16384")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--peak-tokens", type=int, default=20480)
    parser.add_argument("--peak-shapes", nargs="+", default=["planner-tiny"], choices=list(SHAPES))
    parser.add_argument("--budget-gib", type=float, default=4.0)
    parser.add_argument("--markdown", action="store_true", help="print the tables in Markdown")
    parser.add_argument("--peak-of", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.peak_of:
        print(json.dumps(peak_of(args.peak_of[0], int(args.peak_of[1]), args.peak_of[2])))
        return
    console = make_console()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        benches = []
        for shape in args.shapes if {"latency", "matching"} & set(args.parts) else ():
            engine = stack.enter_context(make_engine(shape))
            bench = Bench(engine, make_coder(), Path(folder) / shape, args.repeats, PROGRESS.print)
            benches.append((shape, bench, args.tokens or TOKENS.get(shape, (1024,))))
        if "latency" in args.parts:
            show(latency(benches), args.markdown, console)
        if "matching" in args.parts:
            show(matching(benches, args.turns), args.markdown, console)
    if "peak" in args.parts:
        show(peak(args.peak_shapes, args.peak_tokens, args.threads), args.markdown, console)
    if "capacity" in args.parts:
        show(capacity(args.budget_gib), args.markdown, console)
    print(f"{args.threads} threads, medians of {args.repeats} turns, {COLD_TOKENS} tokens computed cold at most")


if __name__ == "__main__":
    main()
