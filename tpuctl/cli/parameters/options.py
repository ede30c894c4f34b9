"""Options and arguments shared by several commands, with their completion."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from tpuctl.cli.completion.candidates import (
    complete_jobs,
    complete_projects,
    complete_stacks,
    complete_types,
)


class ListFormat(StrEnum):
    """Formats of lists other than the table."""

    json = "json"
    yaml = "yaml"
    wide = "wide"


def type_option(text: str) -> Any:
    return typer.Option("--type", help=text, metavar="TYPE", autocompletion=complete_types)


def project_option(text: str) -> Any:
    return typer.Option("--project", help=text, metavar="PROJECT", autocompletion=complete_projects)


Job = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="Job id, or its last word (default: the running job, otherwise the latest).",
        show_default=False,
        autocompletion=complete_jobs,
    ),
]
OutputFormat = Annotated[
    ListFormat | None,
    typer.Option(
        "--format",
        "-o",
        metavar="FORMAT",
        help="json, yaml, or wide (a table with more columns).",
        show_choices=False,
    ),
]
StackName = Annotated[
    str,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="Stack name, instead of a stack file; requires --project.",
        autocompletion=complete_stacks,
    ),
]
ProjectId = Annotated[str, project_option("Project id, instead of a stack file; requires --stack.")]
