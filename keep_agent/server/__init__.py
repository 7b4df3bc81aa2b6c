"""HTTP server of the planner: agents, chat, scenarios, viewer. Needs the extra ``server``."""
