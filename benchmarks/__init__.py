"""Promised figures, each as a ratio against a peer in the same run: ``python -m benchmarks``."""
