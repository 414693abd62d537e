"""Figures about learning: pure functions over tensors and arrays."""
