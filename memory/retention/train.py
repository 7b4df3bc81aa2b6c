"""Former name of a command: ``python -m memory.retention.train`` runs `planners.train_retention`."""

from __future__ import annotations

import runpy

if __name__ == "__main__":
    runpy.run_module("planners.train_retention", run_name="__main__", alter_sys=True)
