"""What a thread sees while another one loads a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def loading(dtype: torch.dtype = torch.bfloat16) -> Iterator[None]:
    """Transformers changes the default dtype of the process while it makes a model of ``dtype``."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
