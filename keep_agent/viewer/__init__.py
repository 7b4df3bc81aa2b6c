"""Viewer of runs, growing or ended: every step with its decision, memory and world.

It reads run folders only, so it needs neither a model nor torch. `keep-agent view RUN` is the command;
`keep_agent.viewer.server.mount` puts the same pages into another FastAPI application.
"""
