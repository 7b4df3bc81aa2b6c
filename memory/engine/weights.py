"""Weight files: safetensors only, checked before they are loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from keep_agent.errors import ModelError

CHECKSUMS = "SHA256SUMS"  # optional, in sha256sum's format, beside the weights
_WHOLE = 1 << 26  # files up to this many bytes are fingerprinted whole, larger ones by samples
_SAMPLE, _SAMPLES = 1 << 12, 256


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder.

    :raises ModelError: none there, or one named by the index is missing.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        return [_present(folder / name) for name in _shards(index)]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    others = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.pt"))
    hint = f" (found {others[0]}: convert it to safetensors first)" if others else ""
    raise ModelError(f"{folder} has no model.safetensors{hint}; only safetensors weights are loaded.")


def _shards(index: Path) -> list[str]:
    try:
        shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index} is not a valid weight index ({error}); fetch the model again.") from error
    if not shards:
        raise ModelError(f"{index} names no weight files; fetch the model again.")
    return shards


def _present(path: Path) -> Path:
    if not path.is_file():
        raise ModelError(f"weight file {path} is named by the index but missing; fetch the model again.")
    return path


def check_files(files: list[Path]) -> None:
    """Open every file's header and compare checksums where the folder lists them.

    :raises ModelError: a file is truncated, not safetensors, or has another checksum; the message names it.
    """
    sums = _listed_sums(files[0].parent)
    for path in files:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(f"weight file {path} is corrupt ({error}); fetch or build it again.") from error
        if path.name in sums and (found := _sha256(path)) != sums[path.name]:
            raise ModelError(
                f"weight file {path} is corrupt: SHA-256 {found[:12]}... instead of "
                f"{sums[path.name][:12]}... in {CHECKSUMS}; fetch or build it again."
            )


def fingerprint(files: list[Path]) -> str:
    """Hash that tells two sets of weights apart: whole small files; header, size and samples of large ones."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}:{path.stat().st_size}:".encode())
        for chunk in _chunks(path):
            digest.update(chunk)
    return digest.hexdigest()


def _chunks(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _WHOLE:
            yield file.read()
            return
        for number in range(_SAMPLES):
            file.seek(number * (size - _SAMPLE) // (_SAMPLES - 1))
            yield file.read(_SAMPLE)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listed_sums(folder: Path) -> dict[str, str]:
    path = folder / CHECKSUMS
    if not path.is_file():
        return {}
    pairs = [line.split(maxsplit=1) for line in path.read_text().splitlines() if line.strip()]
    if broken := [" ".join(pair) for pair in pairs if len(pair) != 2]:
        raise ModelError(f"{path} has a line without a file name ({broken[0]!r}); fetch or build it again.")
    return {name.strip().lstrip("*"): value for value, name in pairs}
