"""Conversations with the model, each agent with rows of its own: OpenAI, Anthropic, raw text, scenarios."""
