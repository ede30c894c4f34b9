"""Check before a job starts that its secrets exist."""

from __future__ import annotations

import asyncio

from tpuctl.cloud.clients import Cloud
from tpuctl.errors import ApiDisabled, Conflict, Denied, NotFound
from tpuctl.model.stack.secret_sources import Secrets, Source, secret_not_found


async def require_secrets(secrets: Secrets, cloud: Cloud) -> None:
    """Raises NotFound or Conflict for versions that machines could not read.

    Secrets that the caller may not access are skipped: only the machines need access.
    """
    by_reference = {
        source.reference: source for source in secrets.sources.values() if source.secret
    }
    await asyncio.gather(*(_require(source, cloud) for source in by_reference.values()))


async def _require(source: Source, cloud: Cloud) -> None:
    try:
        version = await cloud.call(
            source.reference,
            cloud.client("secrets").get_secret_version,
            {"name": source.reference},
        )
    except NotFound:
        raise secret_not_found(source.secret, source.version) from None
    except ApiDisabled:
        raise
    except Denied:
        return
    if version.state.name != "ENABLED":
        project, name = source.secret.split("/")[1::2]
        number = version.name.rpartition("/")[2]
        raise Conflict(
            "Secret version not enabled",
            f"version {number} of {source.secret} is {version.state.name.lower()}",
            hint="Add a new version; type the value on stdin to keep it out of the history:\n"
            f"    gcloud secrets versions add {name} --project={project} --data-file=-",
        )
