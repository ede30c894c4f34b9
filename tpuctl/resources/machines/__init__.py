"""Machines that have no chips, and their disks."""
