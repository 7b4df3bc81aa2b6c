"""Conversations with the model, by the APIs of OpenAI and Anthropic or as raw text. Each agent has its own KV rows."""
