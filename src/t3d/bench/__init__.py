"""Benchmarks of T3D, and the plain implementation it is compared with."""
