"""Scenarios of several phases and agents, each with a memory that goes on from phase to phase (Semantic)."""
