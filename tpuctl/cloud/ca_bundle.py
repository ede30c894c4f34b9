"""The certificates to trust, such as a company's: one variable for all of Google's clients."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

from tpuctl.errors import Usage

# Of Python's ssl, requests, curl (and requests), and gRPC, each of which reads only its own.
VARIABLES = (
    *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)


def share_ca_bundle(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that are not set to the first that is. Raises Usage for a missing file.

    A folder of certificates, which only some of them accept, stays as it is.
    """
    values = {name: environment[name] for name in VARIABLES if environment.get(name)}
    for name, value in values.items():
        if not os.access(value, os.R_OK):
            raise Usage(
                "Certificates not found",
                f"{value} does not exist, or cannot be read",
                hint=f"Set {name} to a file with the certificates to trust, or unset it.",
                where=name,
            )
    bundle = next((value for value in values.values() if Path(value).is_file()), None)
    if bundle is not None:
        for name in VARIABLES:
            environment.setdefault(name, bundle)
