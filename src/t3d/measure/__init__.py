"""Metrics of learning: pure functions over tensors and arrays."""
