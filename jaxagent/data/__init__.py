"""Benchmarks: the embedded flags benchmark, and readers of the public data sets."""
