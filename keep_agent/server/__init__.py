"""The planner and its memories behind HTTP: agents, chat, scenarios, figures. Needs the extra ``server``."""
