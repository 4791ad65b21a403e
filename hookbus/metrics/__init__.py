"""Metrics of a run: windows, means, results and their names."""
