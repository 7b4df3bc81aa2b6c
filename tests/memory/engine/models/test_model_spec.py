"""Model spec: facts of every family against its blocks, and the benchmark's table of cache sizes."""

from __future__ import annotations

from rich.console import Console

from benchmarks.agents import capacity
from memory.engine.base import Engine
from memory.engine.models.model_shapes import SHAPES, WINDOW

ALTERNATING = (WINDOW, None) * 3
WINDOWS = {
    "tiny-qwen2_sliding": ALTERNATING, "tiny-gemma3_text": ALTERNATING, "tiny-gpt_oss": ALTERNATING,
    "tiny-mistral": (WINDOW,) * 6,
}  # fmt: skip


def test_a_spec_has_the_sizes_of_blocks_and_the_windows_of_layers(any_engine: Engine) -> None:
    spec, name = any_engine.info, any_engine.model.name
    (block,) = any_engine.encode([(None, list(range(64)))])
    assert block.k.shape == (spec.layers, spec.kv_heads, 64, spec.head_dim)
    assert block.nbytes == 64 * spec.bytes_per_token
    assert spec.windows == WINDOWS.get(name, (None,) * 6) and spec.sinks == (name == "tiny-gpt_oss")


def test_the_capacity_table_counts_whole_tokens() -> None:
    """4 GiB hold 466,033.8 tokens of planner-tiny, and 32,768 of Llama 3.1 8B at 128 KiB each."""
    console = Console(width=140)
    with console.capture() as captured:
        console.print(capacity(4.0))
    lines = [line.replace("│", "").split() for line in captured.get().splitlines() if "x │" in line]
    assert [line[0] for line in lines] == list(SHAPES)
    assert lines[0][1:-1] == ["9,216", "2,592", "466,033", "1,657,008", "113", "404"]
    assert lines[-1][1:] == ["131,072", "36,864", "32,768", "116,508", "8", "28", "3.56x"]
