"""Instances, their templates, and the project's settings for them."""
