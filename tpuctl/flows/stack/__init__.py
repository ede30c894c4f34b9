"""What a stack consists of: planned, created, found, charged for, deleted."""
