"""Model files: the files of a folder that a model is loaded from, checked and hashed before loading.

Libraries also load other files of a folder, such as adapters. They therefore get a temporary folder with links to the
hashed files only, and the weights' tensors one by one. No file is memory-mapped: later changes do not affect the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors import SafetensorError

from keep_agent.errors import ModelError
from memory.engine.models.model_path import CONFIG, GGUF
from memory.files.checksums import CHECKSUMS, check_sums, digests_of, read_sums, sha256
from memory.files.tensor_file import open_tensors

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
GENERATION = "generation_config.json"
OTHER_FILES = (  # patterns of files that are loaded with the weights
    CONFIG, GENERATION, INDEX, "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*",
    "merges.txt", "tekken.json", "*.model", "*.tiktoken", "chat_template*", "additional_chat_templates/*",
)  # fmt: skip
OTHER_WEIGHTS = ("*.gguf", "*.bin", "*.pt")  # weights in formats that are not loaded from a folder
CONVERT = "convert it to safetensors first"


@dataclass(frozen=True)
class ModelFiles:
    """Files of a model at the time of hashing."""

    folder: Path
    weights: tuple[Path, ...]
    digests: Mapping[Path, str]  # SHA-256 of every file that is loaded, weights included
    stamps: Mapping[Path, tuple[int, ...]]  # identity, size and times of every file

    @property
    def weights_key(self) -> str:
        """Hash of the weights alone."""
        return self._key(self.weights)

    @property
    def key(self) -> str:
        """Hash of every file that is loaded."""
        return self._key(self.digests)

    def _key(self, files: Iterable[Path]) -> str:
        pairs = sorted((path.relative_to(self.folder).as_posix(), self.digests[path]) for path in files)
        return sha256(json.dumps(pairs).encode())

    def tensors(self) -> dict[str, Any]:
        """Return a lazy safetensors slice per tensor name; indexing the slice reads the tensor."""
        files = [open_tensors(path) for path in self.weights]
        return {name: file.get_slice(name) for file in files for name in file.keys()}  # noqa: SIM118

    @contextmanager
    def view(self) -> Iterator[Path]:
        """Make a temporary folder with links to these files; on exit, raise ModelError if a file has changed."""
        with TemporaryDirectory(prefix="keep-agent-") as name:
            for path in self.digests:
                link = Path(name) / path.relative_to(self.folder)
                link.parent.mkdir(exist_ok=True, parents=True)
                link.symlink_to(path.absolute())
            yield Path(name)
        self.check_unchanged()

    def check_unchanged(self) -> None:
        """Raise ModelError if one of the files has changed since it was hashed."""
        for path, stamp in self.stamps.items():
            if not path.is_file() or _stamp(path) != stamp:
                raise ModelError(f"{path} was changed while the model was loaded; load it again once it is complete.")


def model_files(folder: Path) -> ModelFiles:
    """Hash the files that a model is loaded from, and check them against ``SHA256SUMS`` if the folder has one.

    :raises ModelError: weights are missing, ambiguous or corrupt, or a file has another checksum
    """
    beside = (path for pattern in OTHER_FILES for path in sorted(folder.glob(pattern)) if path.is_file())
    return hashed_files(folder, weight_files(folder), beside)


def hashed_files(folder: Path, weights: Sequence[Path], beside: Iterable[Path]) -> ModelFiles:
    """Hash weights and other files, and check all against ``SHA256SUMS`` if the folder has one.

    :raises ModelError: weights are corrupt, or a file has another checksum
    """
    loaded = list(dict.fromkeys([*weights, *beside]))
    stamps = {path: _stamp(path) for path in loaded}
    digests = digests_of([*loaded, *read_sums(folder / CHECKSUMS)])
    check_sums(folder / CHECKSUMS, digests)
    for path in weights:
        try:
            with open_tensors(path):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"weight file {path} is corrupt ({error}); fetch or build it again.") from error
    return ModelFiles(folder, tuple(weights), {path: digests[path] for path in loaded}, stamps)


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a model folder.

    :raises ModelError: there are none, they are ambiguous, or one that the index names is missing
    """
    single, index = folder / WEIGHTS, folder / INDEX
    shards = _shards(index) if index.is_file() else []
    if single.is_file() and set(shards) - {WEIGHTS}:
        raise ModelError(
            f"{folder} has weights twice, in {WEIGHTS} and in the shards that {INDEX} names; remove one of the two."
        )
    for path in (folder / name for name in shards):
        if not path.is_file():
            raise ModelError(f"weight file {path} is named by the index but missing; fetch the model again.")
    if shards:
        return [folder / name for name in shards]
    if single.is_file():
        return [single]
    foreign = [path.name for pattern in OTHER_WEIGHTS for path in sorted(folder.glob(pattern))]
    hint = (
        f" (found {foreign[0]}: {'name this file itself' if foreign[0].endswith(GGUF) else CONVERT})" if foreign else ""
    )
    raise ModelError(f"{folder} has no {WEIGHTS}{hint}; only safetensors weights are loaded.")


def _shards(index: Path) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_text("utf-8"))["weight_map"].values()))
        outside = [name for name in shards if ".." in Path(name).parts or Path(name).is_absolute()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{index} is not a valid weight index ({error}); fetch the model again.") from error
    if outside:
        raise ModelError(f"{index} names {outside[0]!r}, which is not in its folder; fetch the model again.")
    if not shards:
        raise ModelError(f"{index} names no weight files; fetch the model again.")
    return shards


def _stamp(path: Path) -> tuple[int, ...]:
    """Return identity, size and times of a file; ctime changes even if a program restores the other values."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
