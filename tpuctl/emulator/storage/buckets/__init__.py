"""Buckets: their fields, settings, policies and encryption keys."""
