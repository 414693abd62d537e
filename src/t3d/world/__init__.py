"""Environments, episodes, evaluation and acting policies: numpy and Gymnasium, no torch."""
