"""Model paths: checks of a model's name or folder before torch is imported or a library searches for it."""

from __future__ import annotations

import json
from pathlib import Path

from keep_agent.errors import ModelError

CONFIG, ADAPTER, GGUF = "config.json", "adapter_config.json", ".gguf"


def check_model_path(name: str) -> None:
    """Raise ModelError for a path that does not exist or is not a model."""
    path = Path(name)
    if not path.exists() and (path.is_absolute() or name.startswith(".") or path.suffix.lower() in (".json", GGUF)):
        raise ModelError(f"{name!r} does not exist; give a model folder, a config.json or a hub name.")
    if path.is_file() and path.suffix.lower() not in (".json", GGUF):
        raise ModelError(
            f"{name!r} is a file; give a GGUF file, a folder with config.json, safetensors weights and a tokenizer, or "
            "a hub name."
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
    remedy = f", or remove {ADAPTER} to load {folder} without it" if (folder / CONFIG).is_file() else ""
    raise ModelError(
        f"{folder} holds an adapter of {base} ({ADAPTER}); give its base model, and the adapter beside it: model=BASE "
        f"model.adapter={folder}{remedy}."
    )
