"""The process as a thread sees it while another one loads a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def loading() -> Iterator[None]:
    """Transformers changes the default dtype of the process while it makes a model of another one."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
