"""HTTP server of the planner: agents, chat, scenarios, viewer. Needs the packages of ``keep-agent[server]``."""
