"""Timings of stages and methods. The agent comes first: it says how threads wait, before torch is imported."""

import keep_agent  # noqa: F401
