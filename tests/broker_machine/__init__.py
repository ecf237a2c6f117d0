"""The broker's machine."""
