"""State of the process while another thread loads a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def loading() -> Iterator[None]:
    """Change the default dtype of the process, as transformers does while it makes a model of another dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
