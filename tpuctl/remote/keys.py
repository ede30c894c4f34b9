"""tpuctl's own SSH key: made once, kept in the user's configuration folder."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tpuctl.errors import Usage
from tpuctl.files import private_folder, read_file

LARGEST = 1 << 16  # bytes of a private key

__all__ = ["KeyPair", "config_home", "load_key", "own_key"]


@dataclass(frozen=True)
class KeyPair:
    """A private key's file, and its public key as `authorized_keys` has it, without comment."""

    path: Path
    public_line: str


def config_home(environment: Mapping[str, str] = os.environ) -> Path:
    """Where tpuctl keeps what belongs to the user; `TPUCTL_CONFIG_HOME` moves it."""
    if chosen := environment.get("TPUCTL_CONFIG_HOME"):
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("tpuctl", appauthor=False))


def own_key(folder: Path | None = None) -> KeyPair:
    """The key pair in `folder` (by default `ssh` of the configuration folder), made if missing.

    Two programs that make it at the same time end with the same key.
    """
    path = (folder or config_home() / "ssh") / "id_ed25519"
    try:
        if not path.exists():
            _make(path)
    except OSError as error:
        raise Usage(
            "SSH key cannot be made",
            f"{path}: {error.strerror}",
            hint="Name another folder for what tpuctl keeps with TPUCTL_CONFIG_HOME.",
        ) from error
    return load_key(path)


def load_key(path: Path) -> KeyPair:
    """An existing private key without a passphrase. Raises Usage when it is not one."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    try:
        text = read_file(path, LARGEST)
        try:
            private = serialization.load_ssh_private_key(text, None)
        except ValueError:
            private = serialization.load_pem_private_key(text, None)  # type: ignore[assignment]
        public = private.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
    except OSError as error:
        raise Usage(
            "SSH key cannot be read",
            f"{path}: {error.strerror}",
            hint="Make it readable, name another one, or let tpuctl use its own:\n"
            "    access: {ssh_key: auto}",
        ) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Usage(
            "SSH key cannot be used",
            f"{path}: {error}",
            hint="Give a private key without a passphrase, or let tpuctl use its own:\n"
            "    access: {ssh_key: auto}",
        ) from error
    return KeyPair(path, public.decode())


def _make(path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    text = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    private_folder(path.parent)
    handle, temporary = tempfile.mkstemp(dir=path.parent)  # readable by the owner alone
    try:
        with os.fdopen(handle, "wb") as target:
            target.write(text)
        # A link, unlike a rename, fails when another program was first.
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        Path(temporary).unlink()
