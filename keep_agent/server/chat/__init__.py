"""Conversations with the model, with KV rows per agent: APIs of OpenAI and Anthropic, raw text, scenarios."""
