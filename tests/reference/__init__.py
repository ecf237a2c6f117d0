"""Tests of the reference pipeline."""
