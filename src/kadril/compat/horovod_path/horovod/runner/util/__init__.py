"""Helpers of the runner for threads."""
