"""Apply a plan, and choose which of several failures to raise."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tpuctl.engine import apply
from tpuctl.engine.resource import Resource
from tpuctl.errors import ApiDisabled, Diagnostic, TpuctlError
from tpuctl.flows.stack.zones import widest_error
from tpuctl.model.events import Emit, Outcome
from tpuctl.model.plan import Plan, Result

SERVICE = re.compile(r"[a-z]+\.googleapis\.com")


async def apply_plan(plan: Plan, resources: Sequence[Resource], emit: Emit) -> dict[str, Result]:
    """Apply a plan. Once all steps have ended, raise the failure with the widest scope, if any."""
    results = await apply.apply(plan, resources, emit)
    raise_failure(results)
    return results


def errors_of(results: Mapping[str, Result]) -> dict[str, TpuctlError]:
    """The errors of the steps that failed, by address."""
    return {
        result.address: result.error
        for result in results.values()
        if result.outcome is Outcome.FAILED and isinstance(result.error, TpuctlError)
    }


def combined_error(errors: Mapping[str, TpuctlError], project: str) -> TpuctlError:
    """The failure with the widest scope, with the diagnostics of all.

    Those with the same summary and hint become one, and those of disabled APIs too: it says what
    they hide.
    """
    if (unchecked := _unchecked_error(errors, project)) is not None:
        others = {
            key: failed for key, failed in errors.items() if not isinstance(failed, ApiDisabled)
        }
        errors = {"": unchecked, **others}
    error = widest_error(errors)
    details: dict[tuple[str, str, str], dict[str, None]] = {}
    for failed in (error, *errors.values()):
        for diagnostic in failed.diagnostics:
            key = (diagnostic.summary, diagnostic.hint, diagnostic.where)
            details.setdefault(key, {})[diagnostic.detail] = None
    error.diagnostics = [
        Diagnostic(summary, "\n".join(lines), hint, where)
        for (summary, hint, where), lines in details.items()
    ]
    return error


def _unchecked_error(errors: Mapping[str, TpuctlError], project: str) -> TpuctlError | None:
    """The error for what disabled APIs could not be asked: addresses or kinds, with the ApiDisabled
    of each. Other errors are left out; None without any."""
    by_service: dict[str, list[str]] = {}
    for subject, error in errors.items():
        if isinstance(error, ApiDisabled):
            service = SERVICE.search(error.diagnostics[0].hint)
            by_service.setdefault(service[0] if service else "an API", []).append(subject)
    if not by_service:
        return None
    detail = "\n".join(
        f"{', '.join(sorted(subjects))}: {service} is not enabled in project {project}"
        for service, subjects in sorted(by_service.items())
    )
    return TpuctlError(
        "Not checked",
        detail,
        hint="They may exist and be charged. To find out, enable the API, then repeat the command:"
        f"\n    gcloud services enable {' '.join(sorted(by_service))} --project={project}",
    )


def raise_failure(results: Mapping[str, Result]) -> None:
    """Raise the failure with the widest scope, if any."""
    if errors := errors_of(results):
        raise widest_error(errors)
