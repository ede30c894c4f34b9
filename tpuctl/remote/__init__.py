"""Commands and files on machines, over SSH."""

__all__: list[str] = []
