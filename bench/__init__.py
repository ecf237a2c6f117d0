"""Measurements: ratios taken side by side in one run, each printed as a table and written as JSON."""
