"""ACTING: numpy and Gymnasium, never torch."""
