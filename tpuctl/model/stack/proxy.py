"""A company's proxy and certificates, for the programs on machines."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tpuctl.errors import Diagnostic
from tpuctl.files import is_file
from tpuctl.model.stack.schema import StackFile

__all__ = ["company_certificates", "network_settings", "proxy_problems"]

# Reached without a proxy: Private Google Access leads to Google, and machines to each other.
DIRECT_HOSTS = (
    *("localhost", "127.0.0.1", "::1", "metadata.google.internal", "169.254.169.254"),
    ".googleapis.com",
)
PROXY_VARIABLES = {"https_proxy", "http_proxy", "all_proxy"}  # of a job, such as its secrets
MAX_CA_BYTES = 64 * 1024  # dozens; metadata and, on GKE, a variable have room for them
CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----[\w+/=\s]+-----END CERTIFICATE-----")


def company_certificates(file: StackFile, folder: Path) -> str:
    """The certificates of `network.ca`, without what stands between them; "" if there are none.

    Raises OSError or ValueError if they cannot be read.
    """
    value = file.network.ca
    if value is None:
        return ""
    text = value
    if "-----BEGIN" not in value:
        with (folder / value).expanduser().open(encoding="utf-8", errors="replace") as source:
            text = source.read(MAX_CA_BYTES + 1)
    if len(text) > MAX_CA_BYTES:
        raise ValueError(f"is larger than {MAX_CA_BYTES // 1024} KiB")
    if "PRIVATE KEY-----" in text:
        raise ValueError("contains a private key, which would be sent to the machines")
    certificates = "".join(f"{match}\n" for match in CERTIFICATE.findall(text))
    if not _are_valid(certificates):
        raise ValueError("has no certificates in PEM format, or a damaged one")
    return certificates


def _are_valid(certificates: str) -> bool:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except (ssl.SSLError, ValueError):
        return False
    return True


def network_settings(file: StackFile, folder: Path) -> dict[str, Any] | None:
    """What `network_variables.py` on machines reads, but for the workers' addresses."""
    network = file.network
    variables = {name.lower() for name in (*file.job.env, *file.job.secrets)}
    is_proxied = bool(network.proxy or network.no_proxy or variables & PROXY_VARIABLES)
    if not (is_proxied or network.ca):
        return None
    return {
        "proxy": network.proxy,
        "no_proxy": [*DIRECT_HOSTS, *network.no_proxy] if is_proxied else [],
        "ca": company_certificates(file, folder),
    }


def proxy_problems(
    file: StackFile, folder: Path, where: Callable[[str], str]
) -> Iterator[Diagnostic]:
    """Invalid values of `network.proxy` and `network.ca`."""
    if file.network.proxy is not None:
        yield from _url_problems(file.network.proxy, where("network.proxy"))
    ca = file.network.ca
    if ca is None:
        return
    if "-----BEGIN" not in ca and not is_file(folder / Path(ca).expanduser()):
        yield Diagnostic(
            "No such file",
            f"network.ca: {folder / ca} does not exist",
            "Paths are relative to the stack file.",
            where("network.ca"),
        )
        return
    try:
        company_certificates(file, folder)
    except (OSError, ValueError) as error:
        name = "the text" if "-----BEGIN" in ca else ca
        yield Diagnostic(
            "Invalid certificates",
            f"network.ca: {name} {error}",
            "It needs the certificates of the company's authority alone, each between\n"
            "    -----BEGIN CERTIFICATE-----\n    -----END CERTIFICATE-----",
            where("network.ca"),
        )


def _url_problems(proxy: str, where: str) -> Iterator[Diagnostic]:
    if "@" in proxy:
        yield Diagnostic(
            "Password in network.proxy",
            "network.proxy has a user name or a password, which would be stored in the bucket and "
            "on machines",
            "Store the URL as a secret, and give it to the job:\n"
            "    job: {secrets: {HTTPS_PROXY: secret:NAME}}",
            where,
        )
        return
    try:
        parts = urlsplit(proxy)
        is_url = parts.scheme in ("http", "https") and parts.port is not None
    except ValueError:
        is_url = False
    if not is_url or proxy.rstrip("/") != f"{parts.scheme}://{parts.netloc}" or not parts.hostname:
        yield Diagnostic(
            "Invalid proxy",
            f"network.proxy: {proxy} is not http://HOST:PORT",
            "For example\n    network: {proxy: 'http://proxy.example.com:3128'}",
            where,
        )
