"""How much memory a piece of work needs at its height, beyond what was in use before."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_MARK = "5"  # what sets the high-water mark of the resident set back to where it is (Linux)


class Peak:
    """CUDA: the allocator's high-water mark. CPU: that of the resident set, which only Linux can set back.

    Before it begins, freed memory is given back to the system, so that nobody works in what another has left. The next
    accesses fault; therefore no step is timed and watched at once.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._before = self._begin()

    def _begin(self) -> int | None:
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

    def grown(self) -> int | None:
        """Bytes at the height since then; None where the system does not say."""
        if self._before is None:
            return None
        top = torch.cuda.max_memory_allocated(self._device) if self._device is not None else _status("VmHWM")
        return max(0, top - self._before)


def _status(key: str) -> int:
    """Bytes of a line of the process's status."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])
