"""The only place that touches transformers' internals. Use ``memory.engine.load`` and ``memory.engine.engine``."""
