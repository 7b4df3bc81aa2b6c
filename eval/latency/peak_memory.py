"""Peak memory of a piece of work, beyond the memory in use before it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_MARK = "5"  # resets the high-water mark of the resident set to its present size (Linux)


class Peak:
    """Growth of the high-water mark: of the allocator on CUDA, of the resident set on the CPU (Linux only).

    The constructor first returns freed memory to the system, so that the work cannot use memory of earlier work. This
    causes page faults, so a step is either timed or measured here, never both.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._start = self._reset()

    def _reset(self) -> int | None:
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
            return torch.cuda.memory_allocated(self._device)
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        try:
            CLEAR.write_text(RESET_MARK)
            return _status("VmRSS")
        except OSError:
            return None

    def growth(self) -> int | None:
        """Return the peak growth in bytes since the constructor; None if the system does not report it."""
        if self._start is None:
            return None
        top = torch.cuda.max_memory_allocated(self._device) if self._device is not None else _status("VmHWM")
        return max(0, top - self._start)


def _status(key: str) -> int:
    """Read a line of the process's status in bytes."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])
