"""Model folders of tests: changes of their configuration, and checks of refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from keep_agent.errors import KeepError, ModelError
from memory.engine.models.load import load_model


def set_config(folder: Path, file: str = "config.json", **values: Any) -> None:
    """Change values of a JSON file in ``folder``, which may be missing."""
    path = folder / file
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | values))


def save_weights(folder: Path, tensors: dict[str, torch.Tensor], file: str = "model.safetensors") -> None:
    save_file(tensors, folder / file, {"format": "pt"})


def refusal(
    match: str, *arguments: Any, kind: type[KeepError] = ModelError, load: Callable[..., object] = load_model,
    **options: Any,
) -> str:  # fmt: skip
    """Check that ``load`` refuses its arguments in one sentence, and return it."""
    with pytest.raises(kind, match=match) as caught:
        load(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
