"""Measuring T3D against a plain implementation."""
