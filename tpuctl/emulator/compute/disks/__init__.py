"""Disks, snapshots and boot images."""
