"""Runs in the formats of other tools: derived from events.jsonl, in a process of its own."""
