"""Model paths: checks of a model's name or folder before torch is imported or a library searches for it."""

from __future__ import annotations

import json
from pathlib import Path

from keep_agent.errors import ModelError

CONFIG, ADAPTER = "config.json", "adapter_config.json"


def check_model_path(name: str) -> None:
    """Raise ModelError for a path that does not exist or is not a model."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or name.startswith(".") or path.suffix == ".json"):
        raise ModelError(f"{name!r} does not exist; give a model folder, a config.json or a hub name.")
    if path.suffix == ".gguf" or (path.is_file() and path.suffix != ".json"):
        raise ModelError(
            f"{name!r} is a file, and models are loaded from folders with config.json, safetensors weights and a "
            "tokenizer (GGUF is not supported); give such a folder, or a hub name."
        )
    if path.is_dir() and not (path / CONFIG).is_file():
        refuse_adapter(path)
        raise ModelError(f"{name!r} has no config.json; give a model folder, a config.json or a hub name.")


def refuse_adapter(folder: Path) -> None:
    """Raise ModelError for a folder with an adapter, because the model would be loaded without it."""
    file = folder / ADAPTER
    if not file.is_file():
        return
    try:
        base = repr(json.loads(file.read_text("utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        base = "a model that it does not name"
    remedy = f"; or remove {ADAPTER} to load {folder} without it" if (folder / CONFIG).is_file() else ""
    raise ModelError(
        f"{folder} holds an adapter of {base} ({ADAPTER}), and adapters are not applied here; merge it into its base "
        f"model (in peft: merge_and_unload, then save_pretrained) and load the result{remedy}."
    )
