"""Plots, videos and the choice of the best seed, from run folders."""
