"""The official clients, their endpoints, errors and operations."""

__all__: list[str] = []
