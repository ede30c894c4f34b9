"""What all collections of Compute Engine share: rows, fields, lists, errors, operations."""
