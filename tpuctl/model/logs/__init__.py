"""Logs of jobs, and the metrics in them."""
