"""Frames of an episode: pictures that are encoded at every step, then written into the run folder all together."""

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
from memory.files.atomic import create_folder

FRAMES = "frames"  # name of the folder of pictures in a run folder
EXTENSIONS = {"jpeg": "jpg", "png": "png"}
QUALITY = 90  # quality of JPEG files, 0 to 100
MAX_NAME = 200  # maximum characters of a folder's name; file systems allow 255


@dataclass
class Frames:
    """Encoded pictures of one episode."""

    episode: str
    format: str = "jpeg"  # one of EXTENSIONS
    files: dict[str, bytes] = field(default_factory=dict)  # by file name

    @property
    def folder(self) -> str:
        return f"{FRAMES}/{folder_name(self.episode)}"

    def add(self, step: int, frame: np.ndarray) -> str:
        """Add the picture after ``step`` steps; return its path in the run folder.

        :param frame: uint8 (height, width, 3), RGB; raises DataError for anything else
        """
        name = f"{step:04d}.{EXTENSIONS[self.format]}"
        self.files[name] = encode_picture(frame, self.format)
        return f"{self.folder}/{name}"

    def write(self, run: Path) -> None:
        """Write all pictures into a run folder, or none. Raises KeepError."""
        if not self.files:
            return
        path = run / self.folder
        try:
            if path.exists():
                shutil.rmtree(path)  # left by an attempt at this episode that was not completed
            with create_folder(path) as folder:
                for name, content in self.files.items():
                    (folder / name).write_bytes(content)
        except OSError as error:
            raise KeepError(
                f"{path} cannot be written ({error.strerror}): free some room or make {run} writable, "
                f"and continue with eval.resume={run}"
            ) from error


def folder_name(episode: str) -> str:
    """Return a unique file name for an episode id.

    Long ids get ``%.`` in their names, ids with a leading dot ``%2E``, "" gets ``%``: `quote` returns none of these.
    """
    name = quote(episode, safe="")
    if name.startswith("."):
        name = f"%2E{name[1:]}"  # otherwise ".a" would be a hidden folder, and ".." the parent folder
    if len(name) > MAX_NAME:
        digest = sha256(episode.encode()).hexdigest()[:32]
        return f"{name[: MAX_NAME - len(digest) - 2]}%.{digest}"
    return name or "%"


def encode_picture(frame: np.ndarray, format: str) -> bytes:
    """Encode a picture. Raises DataError for an array of another shape or type."""
    from PIL import Image  # lazy: most worlds have no pictures

    pixels = np.asarray(frame)
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise DataError(f"a frame is {pixels.dtype} {pixels.shape}; the world must give uint8 (height, width, 3)")
    stream = BytesIO()
    Image.fromarray(pixels).save(stream, format, quality=QUALITY)  # PNG ignores the quality
    return stream.getvalue()


def keep_frames(run: Path, episodes: Iterable[str]) -> None:
    """Remove the pictures of all episodes except ``episodes`` (ids), and temporary folders of a killed process."""
    names = {folder_name(episode) for episode in episodes}
    for folder in (run / FRAMES).glob("*"):
        if folder.is_dir() and folder.name not in names:
            shutil.rmtree(folder)
