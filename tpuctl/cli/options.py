"""Options and arguments that several commands share, so that they read and complete alike."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Job", "ProjectId", "StackName"]

Job = Annotated[str, typer.Argument(help="A job's id, or its last word; the latest if empty.")]
StackName = Annotated[
    str, typer.Option("--stack", help="The stack's name, instead of a stack file; with --project.")
]
ProjectId = Annotated[
    str, typer.Option("--project", help="Its project's id, instead of a stack file; with --stack.")
]
