"""Reading and writing of files: errors become a `KeepError` with file and remedy. Any module may import this one."""

from __future__ import annotations

import errno
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

from keep_agent.errors import CapacityError, ConfigError, CorruptError, DataError, KeepError, ModelError, StorageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or a limit on the size of files is reached
SURROGATE = re.compile("[\ud800-\udfff]")  # half of a surrogate pair
LOAD_LOCK = RLock()  # held while a library loads a model, which changes process-wide defaults (dtype)
STRUCTURE_ERRORS = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError)  # raised for malformed data
TRANSIENT = (errno.EMFILE, errno.ENFILE, errno.EINTR, errno.EAGAIN)  # not about the file; a retry may succeed


def refuse_folder(path: Path, example: str) -> None:
    """Raises ConfigError if ``path``, which is to become a file, is a folder. ``example``: a file name to suggest."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file, such as {path / example}")


@contextmanager
def reading(path: Path, remedy: str = "restore it, or name another file") -> Iterator[None]:
    """Turn file system errors into DataError, and damaged gzip data into CorruptError. `TRANSIENT` errors propagate."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise CorruptError(f"{path} is damaged ({error}); {remedy}") from error
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; {remedy}") from None
    except OSError as error:
        if error.errno is None or error.errno in TRANSIENT:
            raise
        raise DataError(f"{path} cannot be read ({error.strerror}); {remedy}") from error


@contextmanager
def writing(path: Path, remedy: str = "free some room") -> Iterator[None]:
    """Turn file system errors into CapacityError for a full disk, else StorageError. `TRANSIENT` errors propagate."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.errno in TRANSIENT:
            raise
        file = error.filename2 or error.filename or path  # a failed rename names two files; the second is the target
        if error.errno in FULL:
            raise CapacityError(f"no room for {file} ({error.strerror}): {remedy}") from error
        what = f"{file} cannot be written ({error.strerror})"
        raise StorageError(f"{what}: make it writable, or name another place") from error


@contextmanager
def loading(what: object, remedy: str) -> Iterator[None]:
    """Turn errors of libraries that load ``what`` into ModelError; KeepErrors propagate. One thread loads at a time."""
    try:
        with LOAD_LOCK:
            yield
    except KeepError:
        raise
    except Exception as error:  # libraries raise exceptions of many classes, which differ between versions
        raise ModelError(f"cannot load {what} ({reason(error)}); {remedy}") from error


@contextmanager
def unpacking(where: object, what: str, remedy: str) -> Iterator[None]:
    """Turn errors caused by a value of an unexpected structure into a DataError that says "``where`` is ``what``"."""
    try:
        yield
    except KeepError:
        raise
    except STRUCTURE_ERRORS as error:
        raise DataError(f"{where} is {what} ({type(error).__name__}: {error}); {remedy}") from None


def reason(error: BaseException) -> str:
    """Return the class of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def read_bytes(path: Path, remedy: str = "restore it, or name another file") -> bytes:
    """Return the content of a file, unpacked if its name ends in ``.gz``. Raises DataError."""
    with reading(path, remedy):
        raw = path.read_bytes()
        return gzip.decompress(raw) if path.suffix == ".gz" else raw


def read_text(path: Path, remedy: str = "restore it, or name another file") -> str:
    """Return the UTF-8 text of a file, with or without a byte order mark. Raises DataError."""
    return decoded(read_bytes(path, remedy), path, remedy)


def read_json(path: Path, remedy: str = "restore it, or name another file", finite: bool = False) -> Any:
    """Return the JSON value in a file. Raises DataError as `parsed` does."""
    return parsed(read_bytes(path, remedy), path, remedy, finite)


def decoded(raw: bytes, where: object, remedy: str) -> str:
    """Decode UTF-8 text. Raises DataError naming ``where``."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 text ({error.reason} at byte {error.start}); {remedy}") from None


def parsed(raw: bytes | str, where: object, remedy: str, finite: bool = False) -> Any:
    """Parse JSON; with ``finite`` NaN and infinities are errors. Raises DataError naming ``where``."""
    text = decoded(raw, where, remedy) if isinstance(raw, bytes) else raw
    read = _finite if finite else float
    try:
        value = json.loads(text, parse_constant=read, parse_float=read)
    except RecursionError:
        raise DataError(f"{where} is nested too deeply; {remedy}") from None
    except ValueError as error:
        raise DataError(f"{where} is not JSON ({error}); {remedy}") from None
    if "\\ud" in text or "\\uD" in text:  # in UTF-8 only such an escape can give half of a surrogate pair
        for place, content in _texts(value):
            if SURROGATE.search(content):
                raise DataError(f"{where} has half of a surrogate pair at {place} ({content!r:.60}); {remedy}")
    return value


def count_values(text: bytes) -> int:
    """Return an upper bound of the number of JSON values in ``text``. Commas and brackets in strings count, too."""
    return sum(map(text.count, (b",", b"[", b"{"))) + 1


def parsed_yaml(text: str, where: object, remedy: str, loader: type | None = None) -> Any:
    """Parse YAML by ``loader`` (default: yaml.SafeLoader, plain types only). Raises DataError naming ``where``."""
    import yaml  # lazy: most readers need no YAML

    try:
        return yaml.load(text, loader or yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, *STRUCTURE_ERRORS) as error:  # `!!bool x` raises KeyError
        raise DataError(f"{where} is not YAML ({' '.join(str(error).split())}); {remedy}") from error


def _texts(content: Any) -> Iterator[tuple[str, str]]:
    """Yield place (such as ``anns[0].task_desc``) and content of every text in a JSON value, keys included."""
    todo: list[tuple[str, Any]] = [("", content)]
    while todo:
        place, value = todo.pop()
        if isinstance(value, str):
            yield place or "the top", value
        elif isinstance(value, list):
            todo += [(f"{place}[{number}]", item) for number, item in enumerate(value)]
        elif isinstance(value, dict):
            todo += [(f"{place}.{key}".lstrip("."), item) for key, item in value.items()]
            todo += [(f"a key of {place or 'the top'}", key) for key in value]


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise ValueError(f"{text:.40} is not a number" if text[-1].isalpha() else f"{text:.40} is too large")
    return float(text)
