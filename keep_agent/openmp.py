"""How the threads of OpenMP wait for each other. Has to be said before torch is imported."""

from __future__ import annotations

import os
import sys

POLICY, SPINS = "OMP_WAIT_POLICY", "GOMP_SPINCOUNT"


def wait_awake() -> None:
    """Let threads stay awake for some microseconds between two operations, as long as nobody has said otherwise.

    A layer is some forty small operations, each shared among the cores. The engine has a thread of its own, so GNU's
    OpenMP counts more threads than cores, and sends each to sleep a microsecond after its share: waking it takes longer
    than many an operation. On two cores a prefill took 10 to 40 % less with this. After 3 ms without work they sleep.
    """
    if sys.platform.startswith("linux") and not {POLICY, SPINS} & os.environ.keys():
        os.environ.update({POLICY: "active", SPINS: "300000"})
