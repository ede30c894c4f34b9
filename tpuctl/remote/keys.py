"""tpuctl's SSH key, generated once and stored in the user's configuration folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import Usage
from tpuctl.files import private_folder, read_file

MAX_KEY_BYTES = 1 << 16  # bytes of a private key


@dataclass(frozen=True)
class KeyPair:
    """A private key file, and its public key as a line of `authorized_keys` without a comment."""

    path: Path
    public_line: str


def config_home(environment: Mapping[str, str] = os.environ) -> Path:
    """The user's configuration folder; `TPUCTL_CONFIG_HOME` overrides it."""
    if folder := environment.get("TPUCTL_CONFIG_HOME"):
        return Path(folder).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("tpuctl", appauthor=False))


def default_key(folder: Path | None = None) -> KeyPair:
    """The key pair in `folder` (default: `ssh` in the configuration folder), generated if missing.

    Safe to call from several programs at the same time: all get the same key.
    """
    path = (folder or config_home() / "ssh") / "id_ed25519"
    try:
        if not path.exists():
            _generate(path)
    except OSError as error:
        raise Usage(
            "Cannot create SSH key",
            f"{path}: {error.strerror}",
            hint="Set TPUCTL_CONFIG_HOME to another folder.",
        ) from error
    return load_key(path)


def load_key(path: Path) -> KeyPair:
    """Load an existing private key without a passphrase; ~ is expanded. Raises Usage."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        path = path.expanduser()
        text = read_file(path, MAX_KEY_BYTES)
        try:
            private = serialization.load_ssh_private_key(text, None)
        except ValueError:
            private = serialization.load_pem_private_key(text, None)  # type: ignore[assignment]
        public = private.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    except (OSError, RuntimeError) as error:  # RuntimeError: no home of such a user
        raise Usage(
            "Cannot read SSH key",
            f"{path}: {getattr(error, 'strerror', None) or 'there is no such user'}",
            hint="Make it readable, choose another key, or let tpuctl use its own:\n"
            "    access: {ssh_key: auto}",
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Usage(
            "Unusable SSH key",
            f"{path}: {error}",
            hint="Use a private key without a passphrase, or let tpuctl use its own:\n"
            "    access: {ssh_key: auto}",
        ) from error
    return KeyPair(path, public.decode())


def _generate(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent)  # readable only by the owner
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(text)
        # Unlike a rename, a link fails if another program was first.
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
