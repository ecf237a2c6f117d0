"""Starts a whole cluster on this host as child processes, and stops it."""
