"""Replays recorded calls of Google's APIs against a local cloud, and compares the responses."""
