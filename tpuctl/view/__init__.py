"""Events and results, shown: in a terminal, as plain lines, as JSON."""

__all__: list[str] = []
