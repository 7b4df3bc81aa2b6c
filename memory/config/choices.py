"""Words that settings of memory and engine may have. Loads no torch, so a command line is checked before that."""

from __future__ import annotations

LAYOUTS = ("memory", "append")
CONTEXTS = ("none", "bos", "system")
TRANSPORTS = ("auto", "inline", "thread", "stream")
IMPORTANCE = ("before", "beside")  # the next layer's rows are chosen before the MLP, or beside it
INITS = ("pretrained", "random")
DTYPES = ("bfloat16", "float16", "float32", "float64")
QUANTIZATIONS = ("bnb-4bit", "bnb-8bit")  # of full-precision checkpoints, while they are read
REDUCTIONS = ("sum", "mean")  # of a candidate's log-likelihood, over its tokens
