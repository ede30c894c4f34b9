"""The environment variables that make a shell's programs use a local cloud.

gcloud and gsutil use a separate configuration in the local cloud's folder; the user's is not
touched. Cloud Storage's client and gcsfs support STORAGE_EMULATOR_HOST. All others, such as
TensorFlow, have Google's hosts built in: they use the gateway as their proxy, which impersonates
Google to clients that trust the local cloud's certificate authority, with credentials that only the
local cloud accepts.
"""

from __future__ import annotations

import configparser
import contextlib
import io
import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from tpuctl.files import private_folder
from tpuctl.local_cloud.api_folders import APIS, endpoint_path
from tpuctl.local_cloud.certificate_authority import authority_files
from tpuctl.local_cloud.defaults import DEFAULT_PROJECT, OWNER
from tpuctl.local_cloud.gateway_address import GatewayAddress, shell_user, write_private
from tpuctl.local_cloud.server_process import LocalCloud
from tpuctl.local_cloud.trust import (
    CERTIFICATE_VARIABLES,
    GCSFS_SETTINGS,
    local_hosts,
    trusted_certificates,
)
from tpuctl.shell_record import RECORD, original_environment, read_record

_PROXIES = ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
# Variables that override the endpoints or the account of the configuration files.
_CONFLICTING = (
    *("GCLOUD_PROJECT", "GOOGLE_CLOUD_QUOTA_PROJECT", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"),
    *("GOOGLE_API_USE_CLIENT_CERTIFICATE", "GOOGLE_API_USE_MTLS_ENDPOINT", "GOOGLE_API_KEY"),
    *("GOOGLE_AUTH_TOKEN_FOR_TESTING", "API_ENDPOINT_OVERRIDE", "grpc_proxy"),
    *("CLOUDSDK_CORE_ACCOUNT", "CLOUDSDK_CORE_PROJECT", "CLOUDSDK_CORE_UNIVERSE_DOMAIN"),
    "CLOUDSDK_CORE_CUSTOM_CA_CERTS_FILE",
)
_CONFLICTING_PREFIXES = (
    *("CLOUDSDK_API_CLIENT_OVERRIDES_", "CLOUDSDK_API_ENDPOINT_OVERRIDES_", "CLOUDSDK_AUTH_"),
    *("CLOUDSDK_BILLING_", "CLOUDSDK_CONTEXT_AWARE_", "CLOUDSDK_PROXY_"),
)


def environment_for(
    cloud: LocalCloud, environ: Mapping[str, str], project: str | None = None
) -> dict[str, str | None]:
    """The variables to set (None: unset) in a shell with this environment.

    Writes the files that they name into the local cloud's folder. Without `project` the current
    one is kept. A local cloud without machines has no gateway: then only clients with an endpoint
    setting use it.
    """
    original = original_environment(environ)
    folder = cloud.home / "environment"
    folder.mkdir(mode=0o700, exist_ok=True)
    credentials = json.dumps(_credentials(cloud.token), indent=2)
    write_private(folder / "credentials.json", credentials)
    write_private(folder / "boto", "[GSUtil]\nuse_gcloud_storage=True\n")
    gateway = GatewayAddress.read(cloud.home)
    gateway_variables = {} if gateway is None else _gateway_variables(cloud.home, gateway, original)
    project = _configure_gcloud(
        folder / "gcloud", cloud, project, gateway_variables.get("SSL_CERT_FILE")
    )
    _log_in(folder / "gcloud" / "credentials.db", credentials)
    direct = ",".join([*local_hosts(), *_direct_hosts(original)])
    variables: dict[str, str | None] = {
        "CLOUDSDK_CONFIG": str(folder / "gcloud"),
        "CLOUDSDK_ACTIVE_CONFIG_NAME": "local",
        "BOTO_CONFIG": str(folder / "boto"),
        "GOOGLE_APPLICATION_CREDENTIALS": str(folder / "credentials.json"),
        "GOOGLE_CLOUD_PROJECT": project,
        "STORAGE_EMULATOR_HOST": f"{cloud.url}/t/{cloud.token}",
        **GCSFS_SETTINGS,
        "no_proxy": direct,
        "NO_PROXY": direct,
        "TPUCTL_CLOUD": "local",
        **gateway_variables,
    }
    variables |= dict.fromkeys(name for name in original if _is_conflicting(name))
    variables[RECORD] = json.dumps(
        {name: original.get(name) for name in {**read_record(environ), **variables}}
    )
    return variables


def _gateway_variables(
    home: Path, gateway: GatewayAddress, original: Mapping[str, str]
) -> dict[str, str]:
    """The gateway as the proxy, and the certificates to trust it."""
    authority = authority_files(home).certificate.read_bytes()
    certificates = home / "environment" / "certificates.pem"
    write_private(
        certificates, trusted_certificates(authority, original).decode("ascii", "replace")
    )
    upstream = next((original[name] for name in _PROXIES if original.get(name)), None)
    proxy = gateway.url(shell_user(home, upstream))
    return {
        **dict.fromkeys(CERTIFICATE_VARIABLES, str(certificates)),
        "https_proxy": proxy,
        "HTTPS_PROXY": proxy,
        # gRPC matches no_proxy by suffix, without networks: all addresses end in a digit.
        "no_grpc_proxy": ",".join(["localhost", *"0123456789", *_direct_hosts(original)]),
    }


def _is_conflicting(name: str) -> bool:
    return name in _CONFLICTING or name.startswith(_CONFLICTING_PREFIXES)


def _direct_hosts(original: Mapping[str, str]) -> list[str]:
    """The hosts that the shell reaches without its proxy, except Google's."""
    hosts = f"{original.get('no_proxy', '')},{original.get('NO_PROXY', '')}".split(",")
    plain = dict.fromkeys(host.strip() for host in hosts)
    return [host for host in plain if host and host != "*" and not _covers_google(host)]


def _covers_google(host: str) -> bool:
    name = host.lower().removeprefix("*").strip(".").partition(":")[0]
    return name.endswith("googleapis.com") or "storage.googleapis.com".endswith(f".{name}")


def _credentials(token: str) -> dict[str, str]:
    """A file as `gcloud auth application-default login` writes it, invalid at Google."""
    return {
        "type": "authorized_user",
        "client_id": "local-cloud.apps.googleusercontent.com",
        "client_secret": "of-no-use-at-google",
        "refresh_token": token,
        "universe_domain": "googleapis.com",
    }


def _configure_gcloud(
    folder: Path, cloud: LocalCloud, project: str | None, certificates: str | None
) -> str:
    """Write gcloud's configuration for the local cloud, keeping the user's other settings.

    Returns its project.
    """
    file = folder / "configurations" / "config_local"
    private_folder(file.parent)
    settings = configparser.RawConfigParser()
    with contextlib.suppress(configparser.Error, OSError):
        settings.read_string(file.read_text("utf-8"))
    for section in ("core", "auth", "api_endpoint_overrides", "component_manager", "survey"):
        if not settings.has_section(section):
            settings.add_section(section)
    project = project or settings.get("core", "project", fallback=None) or DEFAULT_PROJECT
    settings.set("core", "project", project)
    settings.set("core", "account", OWNER)
    if certificates is not None:
        settings.set("core", "custom_ca_certs_file", certificates)
    for name in ("check_gce_metadata", "enable_feature_flags"):
        settings.set("core", name, "false")
    settings.set("core", "disable_usage_reporting", "true")
    settings.set("auth", "access_token_file", str(cloud.home / "token"))
    settings.set("component_manager", "disable_update_check", "true")
    settings.set("survey", "disable_prompts", "true")
    for api in APIS:
        settings.set("api_endpoint_overrides", api, cloud.url + endpoint_path(api))
    text = io.StringIO()
    settings.write(text)
    write_private(file, text.getvalue())
    write_private(folder / "active_config", "local")
    return project


def _log_in(file: Path, credentials: str) -> None:
    """Add the owner to gcloud's accounts, which `gcloud auth list` shows; others stay.

    The table is that of SqliteCredentialStore in its core/credentials/creds.py (version 528).
    """
    if not file.exists():
        write_private(file, "")
    table = "CREATE TABLE IF NOT EXISTS credentials (account_id TEXT PRIMARY KEY, value BLOB)"
    with contextlib.closing(sqlite3.connect(file)) as database, database:
        database.execute(table)
        database.execute("REPLACE INTO credentials VALUES (?, ?)", (OWNER, credentials))
