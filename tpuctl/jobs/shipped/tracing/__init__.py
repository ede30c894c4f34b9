"""Stacks and profiles of a job's Python processes."""
