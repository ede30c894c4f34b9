"""State of the local cloud: the store, operations, paces, projects, settings."""
