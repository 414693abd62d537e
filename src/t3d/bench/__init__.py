"""Benchmarks of T3D: `t3d bench`."""
