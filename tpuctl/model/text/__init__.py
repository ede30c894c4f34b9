"""Texts within bounds: names, durations and records; no secrets and no control characters."""
