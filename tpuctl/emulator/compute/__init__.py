"""Compute Engine v1."""
