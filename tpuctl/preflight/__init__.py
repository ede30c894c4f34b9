"""What can be found out about a script before anything is sent."""

__all__: list[str] = []
