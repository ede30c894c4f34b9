"""SSH keys as lines of a machine's metadata."""

from __future__ import annotations


def public_key_line(user: str, public_keys: str) -> str:
    """A line of `ssh-keys` metadata for each line of keys: USER:TYPE KEY USER."""
    keys = [line.split()[:2] for line in public_keys.splitlines()]
    return "\n".join(f"{user}:{kind} {key} {user}" for kind, key in keys)


def ssh_keys_with(existing: str, more: str) -> str:
    """The metadata value with these lines added."""
    lines = [line for line in existing.splitlines() if line.strip()]
    return "\n".join([*lines, *(line for line in more.splitlines() if line not in lines)])
