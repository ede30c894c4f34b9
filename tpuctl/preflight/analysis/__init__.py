"""One evaluator: what a script's names, values, and functions are, found without running it."""

__all__: list[str] = []
