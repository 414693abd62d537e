"""MEMORY: what updates learn from."""
