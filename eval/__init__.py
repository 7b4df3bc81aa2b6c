"""Experiments. The agent comes first: it says how threads wait, which has to be said before torch is imported."""

import keep_agent  # noqa: F401
