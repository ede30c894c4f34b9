"""Whether Google has TPUs for a stack: quota, reservations, zones, and earlier requests."""
