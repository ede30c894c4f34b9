"""Recovers jobs on a stack's controller, unattended."""
