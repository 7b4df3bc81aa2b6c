"""Benchmarks of stages and methods. keep_agent is imported first, because it configures OpenMP before torch loads."""

import keep_agent  # noqa: F401
