"""Viewer of running and finished runs: every step with its decision, memory and world.

It reads run folders only, and needs neither a model nor torch. `keep-agent view RUN` is the command;
`keep_agent.viewer.server.mount` puts the same pages into another FastAPI application.
"""
