"""Compute Engine's virtual machines, such as controllers, and their disks, images and metadata."""
