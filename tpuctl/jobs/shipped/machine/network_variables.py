"""Environment variables for a company's proxy and certificates, as programs on a machine read them.

Like those that import it, this file is sent to workers as it is: standard library only, Python 3.8
and later.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # instead of that of typing, which takes a while to load
if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping
    from typing import Any

PROXIES = ("https_proxy", "http_proxy", "no_proxy")
# A file with certificates, for: Python and uv, requests, curl and TensorFlow, pip, Git.
CERTIFICATES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT"),
    "GIT_SSL_CAINFO",
)
# The system's: what the machine sets, then Debian's, Red Hat's, and OpenSSL's own.
SYSTEM_FILES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/cert.pem",
)
BUNDLE = "ca-certificates.pem"
# On machines of the local cloud: the proxy that answers for Google and reaches other hosts through
# another proxy, whose URL, in hexadecimal, is the place of {}.
GATEWAY = "TPUCTL_LOCAL_GATEWAY"


def use_network(network: Mapping[str, Any] | None, folder: str) -> None:
    """Set this process's variables for a stack's settings: `proxy`, `no_proxy`, `ca`.

    The system's and the company's certificates are written to a file in the folder.
    """
    if not network:
        return
    variables: dict[str, str] = {}
    if network["proxy"]:
        variables.update(dict.fromkeys(("https_proxy", "http_proxy"), network["proxy"]))
    if network["no_proxy"]:
        existing = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
        hosts = ",".join([*network["no_proxy"], *filter(None, existing.split(","))])
        # gRPC compares the ends of names, and knows no ranges: these are all numeric addresses.
        variables.update(no_proxy=hosts, no_grpc_proxy=",".join([hosts, *"0123456789"]))
    variables.update({name.upper(): variables[name] for name in PROXIES if name in variables})
    if network["ca"]:
        bundle = os.path.join(folder, BUNDLE)
        with open(bundle, "w", encoding="utf-8") as target:
            target.write(system_certificates() + network["ca"])
        variables.update(dict.fromkeys(CERTIFICATES, bundle))
    set_variables(os.environ, variables)


def set_variables(environment: MutableMapping[str, str], variables: Mapping[str, str]) -> None:
    """Set variables. Those of proxies also replace the same name in the other case, which some
    programs prefer."""
    for name in variables:
        if name.lower() in PROXIES:
            for other in (name.lower(), name.upper()):
                environment.pop(other, None)
    environment.update(variables)
    if os.environ.get(GATEWAY):
        reach_google_locally(environment, os.environ[GATEWAY])


def reach_google_locally(environment: MutableMapping[str, str], gateway: str) -> None:
    """Have the local cloud's gateway, which answers for Google, use the proxy for other hosts."""
    for name in ("https_proxy", "HTTPS_PROXY"):
        proxy = environment.get(name, "")
        if proxy and not proxy.endswith(gateway.rpartition("@")[2]):
            environment[name] = gateway.format(proxy.encode().hex())
    for name in ("no_proxy", "NO_PROXY"):
        if name in environment:
            hosts = environment[name].split(",")
            others = (host for host in hosts if not host.strip().endswith("googleapis.com"))
            environment[name] = ",".join(others)


def system_certificates() -> str:
    for path in (os.environ.get("SSL_CERT_FILE", ""), *SYSTEM_FILES):
        try:
            with open(path, encoding="utf-8", errors="replace") as source:
                return source.read() + "\n"
        except OSError:
            continue
    return ""
