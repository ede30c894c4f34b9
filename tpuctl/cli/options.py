"""Options and arguments that several commands share, so that they read and complete alike.

Where a command says more than the alias does, it calls the function of the same thing:

    zone: Annotated[str, zone_option("Only what this zone offers.")] = ""
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
        help="A job's id, or its last word; else the latest.",
        show_default=False,
        autocompletion=complete_jobs,
    ),
]
StackName = Annotated[
    str,
    typer.Option(
        "--stack",
        metavar="STACK",
        help="The stack's name, instead of a stack file; with --project.",
        autocompletion=complete_stacks,
    ),
]
ProjectId = Annotated[
    str, project_option("Its project's id, instead of a stack file; with --stack.")
]
TpuType = Annotated[str, type_option("A TPU type, such as v3-8.")]
Zone = Annotated[str, zone_option("A zone, such as europe-west4-a.")]
Region = Annotated[str, region_option("A region, such as europe-west4.")]
Runtime = Annotated[str, runtime_option("A runtime version, such as tpu-vm-tf-2.18.0-pjrt.")]
Worker = Annotated[str, worker_option("Which worker, from 0.")]
Template = Annotated[
    str,
    typer.Argument(
        metavar="[TEMPLATE]",
        help="A template; --list shows them.",
        autocompletion=complete_templates,
    ),
]
