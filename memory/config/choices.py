"""Allowed values of memory and engine settings, by which a command line is checked before torch is loaded."""

from __future__ import annotations

LAYOUTS = ("memory", "append")  # memory: the prompt is rebuilt at every step; append: it only grows
CONTEXTS = ("none", "bos", "system")  # part of the context prefix that segments encoded alone attend to
TRANSPORTS = ("auto", "inline", "thread", "stream")  # ways to copy stored keys and values to the compute device
IMPORTANCE = ("before", "beside")  # the next layer's rows are chosen before the MLP, or in parallel with it
INITS = ("pretrained", "random")
DTYPES = ("bfloat16", "float16", "float32", "float64")
QUANTIZATIONS = ("bnb-4bit", "bnb-8bit")  # applied to full-precision checkpoints while they are read
RENAMED = {  # maps the earlier name of a class, setting or config group option to its present name
    "memory.frozen.FrozenPool": "memory.kv_cache.pinned_blocks.PinnedPool",
    "memory.graph.Grouping": "memory.segments.groups.Grouping",
    "memory.schedule.Schedule": "memory.recompute.multi_hop.Schedule",
    "memory.frozen": "memory.pinned",
    "memory=keep_lean": "memory=keep_contextual",
    "memory/recompute=multi_hop_lean": "memory/recompute=multi_hop_limited",
}
REDUCTIONS = ("sum", "mean")  # how log-probabilities of tokens become a candidate's score


def new_name(key: str) -> str:
    """Return a note with the new name of a class, setting or ``GROUP=OPTION`` for an error text; "" if not renamed."""
    old = next((old for old in RENAMED if f"{key}.".startswith(f"{old}.")), None)
    return "" if old is None else f"; {old} is called {RENAMED[old]} now"
