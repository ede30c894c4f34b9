"""Uploads and downloads of data."""
