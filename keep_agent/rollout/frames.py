"""Pictures of an episode: encoded as they come, and written beside the trace, all of them or none."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

import numpy as np

from keep_agent.errors import DataError, KeepError
from memory.files.atomic import appearing

FRAMES = "frames"  # in the run folder
ENDINGS = {"jpeg": "jpg", "png": "png"}
QUALITY = 90  # of JPEG
LONGEST = 200  # characters of a folder's name; file systems take 255


@dataclass
class Frames:
    """The pictures of one episode so far, as the bytes of their files."""

    episode: str
    format: str = "jpeg"  # one of ENDINGS
    files: dict[str, bytes] = field(default_factory=dict)  # by name

    @property
    def folder(self) -> str:
        """Of the episode, in the run folder."""
        return f"{FRAMES}/{folder_name(self.episode)}"

    def add(self, step: int, frame: np.ndarray) -> str:
        """Take the picture after so many steps of the episode; its path in the run folder.

        :param frame: uint8 (height, width, 3), RGB; raises DataError for anything else
        """
        name = f"{step:04d}.{ENDINGS[self.format]}"
        self.files[name] = encoded(frame, self.format)
        return f"{self.folder}/{name}"

    def write(self, run: Path) -> None:
        """Write them into a run's folder. Raises KeepError if they cannot be; then none is there."""
        if not self.files:
            return
        path = run / self.folder
        try:
            if path.exists():
                shutil.rmtree(path)  # of an attempt that was never committed
            with appearing(path) as folder:
                for name, content in self.files.items():
                    (folder / name).write_bytes(content)
        except OSError as error:
            raise KeepError(
                f"{path} cannot be written ({error.strerror}): free some room or make {run} writable, "
                f"and go on with eval.resume={run}"
            ) from error


def folder_name(episode: str) -> str:
    """A file name for any episode id, and another one for any other.

    ``quote`` leaves dots alone, and never writes ``%`` at the end or before one.
    """
    name = quote(episode, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"  # neither a folder above nor hidden
    if len(name) > LONGEST:
        digest = sha256(episode.encode()).hexdigest()[:32]
        return f"{name[: LONGEST - len(digest) - 2]}%.{digest}"
    return name or "%"


def encoded(frame: np.ndarray, format: str) -> bytes:
    """The bytes of a picture's file. Raises DataError for what is no picture."""
    from PIL import Image  # here: most worlds have nothing to show

    pixels = np.asarray(frame)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise DataError(f"a frame is {pixels.dtype} {pixels.shape}; the world must give uint8 (height, width, 3)")
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, format, quality=QUALITY)  # PNG has no quality and ignores it
    return stream.getvalue()


def keep_frames(run: Path, episodes: Iterable[str]) -> None:
    """Remove the pictures of all other episodes, and what a killed writer left."""
    kept = {folder_name(episode) for episode in episodes}
    for folder in (run / FRAMES).glob("*"):
        if folder.is_dir() and folder.name not in kept:
            shutil.rmtree(folder)
