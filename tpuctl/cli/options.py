"""Options and arguments shared by several commands, with their completion.

A command that needs another help text calls the function instead of using the alias:

    zone: Annotated[str, zone_option("Limit to this zone.")] = ""
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tpuctl.cli.completion.candidates import (
    complete_jobs,
    complete_projects,
    complete_regions,
    complete_runtimes,
    complete_stacks,
    complete_templates,
    complete_types,
    complete_workers,
    complete_zones,
)

__all__ = [
    "Job",
    "ProjectId",
    "Region",
    "Runtime",
    "StackName",
    "Template",
    "TpuType",
    "Worker",
    "Zone",
    "project_option",
    "region_option",
    "runtime_option",
    "type_option",
    "worker_option",
    "zone_option",
]


def type_option(text: str, *names: str) -> Any:
    return typer.Option(
        *(names or ("--type",)), help=text, metavar="TYPE", autocompletion=complete_types
    )


def zone_option(text: str, *names: str) -> Any:
    return typer.Option(
        *(names or ("--zone",)), help=text, metavar="ZONE", autocompletion=complete_zones
    )


def region_option(text: str, *names: str) -> Any:
    return typer.Option(
        *(names or ("--region",)), help=text, metavar="REGION", autocompletion=complete_regions
    )


def runtime_option(text: str, *names: str) -> Any:
    return typer.Option(
        *(names or ("--runtime",)), help=text, metavar="RUNTIME", autocompletion=complete_runtimes
    )


def worker_option(text: str, *names: str) -> Any:
    return typer.Option(
        *(names or ("--worker",)), help=text, metavar="WORKER", autocompletion=complete_workers
    )


def project_option(text: str, *names: str) -> Any:
    return typer.Option(
        *(names or ("--project",)), help=text, metavar="PROJECT", autocompletion=complete_projects
    )


Job = Annotated[
    str,
    typer.Argument(
        metavar="[JOB]",
        help="Job id, or its last word (default: the latest job).",
        show_default=False,
        autocompletion=complete_jobs,
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
TpuType = Annotated[str, type_option("TPU type, such as v3-8.")]
Zone = Annotated[str, zone_option("Zone, such as europe-west4-a.")]
Region = Annotated[str, region_option("Region, such as europe-west4.")]
Runtime = Annotated[str, runtime_option("Runtime version, such as tpu-vm-tf-2.18.0-pjrt.")]
Worker = Annotated[str, worker_option("Worker index, starting at 0.")]
Template = Annotated[
    str,
    typer.Argument(
        metavar="[TEMPLATE]",
        help="Template; --list shows all.",
        autocompletion=complete_templates,
    ),
]
