"""Weights in the package: folders of the planners trained from scratch, and of the adapter of a pretrained model."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

_FOLDER = Path(__file__).parent
BUNDLED = _FOLDER / "planner_tiny"
LONG = _FOLDER / "planner_tiny_long"  # trained on transcripts of up to 3,800 tokens
PLANNERS = MappingProxyType({"planner-tiny": BUNDLED, "planner-tiny-long": LONG})
ADAPTERS = MappingProxyType({"planner-smol": ("smollm2-135m", _FOLDER / "planner_smol")})  # base model, adapter
ABILITIES = "planner.json"  # beside an adapter: how its prompts differ from those of other models
