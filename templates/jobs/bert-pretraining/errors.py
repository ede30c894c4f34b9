"""The one error this job raises on purpose."""

__all__ = ["JobError"]


class JobError(Exception):
    """Something the user can put right, said in one line.

    The exit code is 2 when the arguments or the input are at fault, else 1.
    """

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
