"""Organization Policy v2."""
