"""Service Usage v1 and v1beta1."""
