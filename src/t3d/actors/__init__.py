"""Collectors and evaluators: in this process, or in worker processes beside it."""
