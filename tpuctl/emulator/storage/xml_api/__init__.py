"""The XML API."""
