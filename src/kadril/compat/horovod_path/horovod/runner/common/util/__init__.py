"""Helpers of the runner."""
