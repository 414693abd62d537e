"""Policies outside the trainer: loading them from anywhere, and exporting them."""
