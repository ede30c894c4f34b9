"""Resource Manager v1, v2 and v3."""
