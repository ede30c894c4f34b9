"""The stories: bring a stack up and down, submit a job, follow it."""

__all__: list[str] = []
