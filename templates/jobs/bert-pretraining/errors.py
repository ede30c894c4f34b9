"""The error that this job reports to the user."""

__all__ = ["JobError"]


class JobError(Exception):
    """A problem the user can fix, described in one line.

    The exit code is 2 for invalid arguments or input, otherwise 1.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
