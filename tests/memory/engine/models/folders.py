"""Model folders of tests: changes of their configuration, and checks of refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keep_agent.errors import KeepError, ModelError
from memory.engine.models.load import load_model


def set_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def refusal(
    match: str, *arguments: Any, kind: type[KeepError] = ModelError, load: Callable[..., object] = load_model,
    **options: Any,
) -> str:  # fmt: skip
    """Check that ``load`` refuses its arguments in one sentence, and return it."""
    with pytest.raises(kind, match=match) as caught:
        load(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)
