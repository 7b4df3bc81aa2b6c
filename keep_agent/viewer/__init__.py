"""Looks into a run while it grows or after it ended: every step, what the memory did for it, and the world around it.

Reads run folders and nothing else, so it needs neither a model nor torch. `keep-agent view RUN` is the command,
`keep_agent.viewer.server.mount` puts the same pages into another FastAPI application.
"""
