"""Benchmark of agents' memories: hot, warm and cold prompts, matching by text or tokens, peak memory, and capacity.

    python -m benchmarks.agents [--threads N] [--repeats N] [--shapes planner-tiny qwen2.5-0.5b] [--tokens N ...]
        [--parts latency matching peak capacity] [--turns N] [--markdown] [--peak-tokens N] [--budget-gib N]

Weights are random, in bfloat16. Times are medians in milliseconds from the text to the logits of its last token. They
include matching, tokenisation, reading and prefill. ``cold`` computes a whole prompt in chunks; ``plain`` does so
without quantization. ``hot`` appends a short message to a prompt in memory, ``exact`` repeats a prompt. ``warm``
appends a short message to a prompt on disk and verifies its checksum; the file is in the page cache, as after a restart
of the program. The measurements of one table row run one after another, so use an otherwise idle machine.

``peak``: growth of a separate process's memory during a prefill, in one pass and in chunks (Linux only). ``capacity``:
the agents that fit into --budget-gib, calculated from the sizes of their rows.

``matching`` runs one conversation and matches each turn twice: by its text, and by its tokens, after tokenising the
whole conversation again. Replies are ``tokenised`` sentences or ``random`` tokens, which no tokenizer would produce.
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

from benchmarks.timing import timed
from eval.common.tables import show
from keep_agent.console import make_console
from memory.agents.manager import AgentMemories, AgentPrompt
from memory.agents.text_match import TokenizerCoder, common_length
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.load import from_config
from memory.engine.models.model_shapes import SHAPES
from memory.engine.transformers.engine import TransformersEngine
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.kv_cache.quantization import PackFormat, bytes_per_token
from memory.kv_cache.quantized import QuantizedCache

TOKENS = {"planner-tiny": (1024, 4096, 16384), "qwen2.5-0.5b": (1024, 4096, 16384)}
PARTS = ("latency", "matching", "peak", "capacity")
POSITIONS = 65536
PROGRESS = make_console(stderr=True)
COLD_TOKENS = 8192  # maximum tokens of all repetitions of a cold prompt; a longer prompt is measured once
AGENT_TOKENS = 4096  # tokens of an agent's memory in the table of capacities
MESSAGE = "Robot: the mug is in the fridge, what now?\n"
VOCABULARY = 1000
VERBS, PLACES = ("go to", "pick up", "open", "look at"), ("the fridge", "a mug", "the countertop", "cabinet 12")


def make_engine(shape: str) -> Engine:
    config = AutoConfig.for_model(**{**SHAPES[shape], "max_position_embeddings": POSITIONS})
    return TransformersEngine(from_config(config, torch.bfloat16, name=shape))


def make_coder() -> TokenizerCoder:
    """Train a byte-level BPE tokenizer, the usual kind, on the benchmark's texts."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=VOCABULARY, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([story(2000), MESSAGE], trainer)
    return TokenizerCoder(tokenizer)


def story(count: int, seed: int = 0) -> str:
    rng = random.Random(seed)
    return "".join(f"{rng.choice(VERBS)} {rng.choice(PLACES)} {rng.randrange(99)}\n" for _ in range(count))


def text_of(tokens: int, coder: TokenizerCoder) -> str:
    """Return complete lines of about ``tokens`` tokens."""
    ends = coder.encode(story(tokens), first=True).ends
    text = story(tokens)[: ends[tokens - 1]]
    return text[: text.rindex("\n") + 1]


@dataclass
class AgentBenchmark:
    """Measurements on one model, with a folder for its agents."""

    engine: Engine
    coder: TokenizerCoder
    folder: Path
    repeats: int
    say: Callable[[str], None]

    @contextmanager
    def memories(self, warm: bool = False) -> Iterator[AgentMemories]:
        with AgentMemories(self.engine, self.coder, folder=self.folder if warm else None) as memories:
            yield memories

    def open(self, memories: AgentMemories, text: str) -> tuple[AgentPrompt, float]:
        """Open and prefill a prompt; return it with the milliseconds to its first token."""
        start = time.perf_counter()
        prompt = memories.open("agent", text)
        self.engine.extend(prompt.cache, prompt.new, ChunkSchedule())
        return prompt, 1e3 * (time.perf_counter() - start)

    def turn(self, memories: AgentMemories, text: str) -> float:
        """Run one turn; return the milliseconds to the first token."""
        prompt, ms = self.open(memories, text)
        memories.finish(prompt, persist=False)
        return ms

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
        """Return the median milliseconds of extended and of repeated prompts, and the final text."""
        extended, exact = [], []
        for _ in range(self.repeats + 1):
            text += MESSAGE
            extended.append(self.turn(memories, text))
            exact.append(self.turn(memories, text))
        return statistics.median(extended[1:]), statistics.median(exact[1:]), text

    def warm(self, text: str) -> float:
        """Return the milliseconds of an extended prompt after a restart, with the memory on disk."""
        times = []
        for _ in range(self.repeats):
            with self.memories(warm=True) as memories:
                prompt, ms = self.open(memories, text + MESSAGE)
                times.append(ms)
                assert prompt.origin == "warm" and prompt.kind == "extend", "the prompt must come from disk"
        return statistics.median(times)

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
        speedups = (f"{cold / ms:.0f}x" for ms in (hot, exact, warm))
        share = f"{100 * size / (self.engine.info.bytes_per_token * tokens):.0f} %"
        return [str(tokens), *(f"{ms:.1f}" for ms in (cold, plain, hot, exact, warm)), *speedups, share]

    def matching(self, tokens: int, random_replies: bool, turns: int) -> list[str]:
        """Run one conversation with both ways of matching; return their shares of reused rows and milliseconds."""
        text, rng, cache = text_of(tokens, self.coder), random.Random(0), self.empty()
        hits, lengths, times = [], [], []  # pairs (by text, by tokens), one per turn
        with self.memories() as memories:
            for turn in range(turns + 1):
                prompt, by_text = self.open(memories, text)
                start = time.perf_counter()
                ids = self.coder.encode(text, first=True).ids
                cache.cut(min(common_length(cache.tokens, ids), len(ids) - 1))
                reused = cache.next_position
                self.engine.extend(cache, ids[reused:], ChunkSchedule())
                times.append((by_text, 1e3 * (time.perf_counter() - start)))
                hits.append((prompt.reused, reused))
                lengths.append((len(prompt.token_text.ids), len(ids)))
                sentence = None if random_replies else story(2, turn)
                reply = self.coder.encode(sentence).ids if sentence else [rng.randrange(VOCABULARY) for _ in range(16)]
                for extended in (prompt.cache, cache):
                    self.engine.extend(extended, reply)
                transcript = prompt.token_text.first(len(prompt.token_text.ids))
                transcript.extend(reply, self.coder, sentence)
                memories.finish(prompt, reply, sentence)
                text = transcript.text + MESSAGE
        by_way = (list(zip(*pairs[1:], strict=True)) for pairs in (hits, lengths, times))
        rows = list(zip(*by_way, strict=True))  # (hits, lengths, times) by text, then by tokens
        shares = (f"{100 * sum(hit) / sum(length):.1f} %" for hit, length, _ in rows)
        return [*shares, *(f"{statistics.median(ms):.1f}" for _, _, ms in rows)]

    def empty(self) -> QuantizedCache:
        return QuantizedCache(self.engine.info, PackFormat(), self.engine.device)


def latency(benches: Sequence[tuple[str, AgentBenchmark, Sequence[int]]]) -> Table:
    names = ("cold", "plain", "hot", "exact", "warm")
    columns = *(f"{name} ms" for name in names), *(f"cold/{name}" for name in names[2:]), "file"
    caption = "file: its size relative to the rows in bfloat16, text included"
    table = Table("shape", "tokens", *columns, title="Hot, warm and cold", caption=caption)
    for shape, bench, lengths in benches:
        PROGRESS.print(f"latency of {shape}")
        for tokens in lengths:
            table.add_row(shape, *bench.latency(tokens))
    return table


def matching(benches: Sequence[tuple[str, AgentBenchmark, Sequence[int]]], turns: int) -> Table:
    columns = "shape", "tokens", "replies", "kept by text", "by tokens", "ms by text", "ms by tokens"
    table = Table(*columns, title="By text and by tokens")
    for shape, bench, lengths in benches:
        tokens = sorted(lengths)[:2][-1]
        for replies in ("tokenised", "random"):
            PROGRESS.print(f"matching of {shape}: {tokens} tokens, {turns} turns")
            table.add_row(shape, str(tokens), replies, *bench.matching(tokens, replies == "random", turns))
    return table


def peak(shapes: Sequence[str], tokens: int, threads: int) -> Table:
    """Measure each prefill in a separate process, since memory freed by an earlier one would hide the growth."""
    columns = "shape", "tokens", "at once MiB", "in chunks MiB", "saved", "packed rows MiB"
    caption = "MiB in addition to the model and a short prompt"
    table = Table(*columns, title="Peak of a prefill", caption=caption)
    for shape in shapes:
        results = []
        for how in ("whole", "chunks"):
            PROGRESS.print(f"peak of {shape}: {tokens} tokens, {how}")
            command = [sys.executable, "-m", "benchmarks.agents", "--threads", str(threads), "--peak-of", shape]
            done = subprocess.run([*command, str(tokens), how], capture_output=True, text=True, check=True)
            results.append(json.loads(done.stdout))
        whole, chunks = (result["growth"] for result in results)
        numbers = f"{whole:.0f}", f"{chunks:.0f}", f"{100 * (1 - chunks / whole):.0f} %", f"{results[0]['rows']:.0f}"
        table.add_row(shape, str(tokens), *numbers)
    return table


def peak_of(shape: str, tokens: int, how: str) -> dict[str, float]:
    """Return the MiB by which this process grows during a prefill, and the MiB of the resulting rows."""
    with make_engine(shape) as engine:
        draw = torch.randint(5, 900, (tokens,), generator=torch.Generator().manual_seed(0))
        cache = QuantizedCache(engine.info, PackFormat(), engine.device)
        engine.extend(QuantizedCache(engine.info, PackFormat(), engine.device), draw[:256])
        Path("/proc/self/clear_refs").write_text("5")  # reset the peak, which loading the model has raised
        before = peak_mib()
        engine.extend(cache, draw, ChunkSchedule() if how == "chunks" else None)
        return {"growth": peak_mib() - before, "rows": cache.nbytes / (1 << 20)}


def peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def capacity(gib: float) -> Table:
    """Return a table of the bytes per token, and of the tokens and agents that fit into ``gib`` GiB."""
    columns = "shape", "fp16 B/token", "4 bit B/token", "longest fp16", "4 bit", "agents fp16", "4 bit", "more"
    caption = f"tokens of one agent, and agents of {AGENT_TOKENS} tokens, in {gib:g} GiB"
    table = Table(*columns, title="What fits", caption=caption)
    for shape, values in SHAPES.items():
        kv_heads, head_dim = values["num_key_value_heads"], values["hidden_size"] // values["num_attention_heads"]
        sizes = 2 * 2 * kv_heads * head_dim, bytes_per_token(kv_heads, head_dim, PackFormat())  # per layer
        full, packed = (values["num_hidden_layers"] * size for size in sizes)
        longest = [int(gib * (1 << 30)) // size for size in (full, packed)]
        agents = (tokens // AGENT_TOKENS for tokens in longest)
        numbers = (f"{number:,}" for number in (full, packed, *longest, *agents))
        table.add_row(shape, *numbers, f"{full / packed:.2f}x")
    return table


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
            bench = AgentBenchmark(engine, make_coder(), Path(folder) / shape, args.repeats, PROGRESS.print)
            benches.append((shape, bench, args.tokens or TOKENS.get(shape, (1024,))))
        if "latency" in args.parts:
            show(latency(benches), args.markdown, console)
        if "matching" in args.parts:
            show(matching(benches, args.turns), args.markdown, console)
    if "peak" in args.parts:
        show(peak(args.peak_shapes, args.peak_tokens, args.threads), args.markdown, console)
    if "capacity" in args.parts:
        show(capacity(args.budget_gib), args.markdown, console)
    print(f"{args.threads} threads, medians of {args.repeats} turns, cold prompts repeated up to {COLD_TOKENS} tokens")


if __name__ == "__main__":
    main()
