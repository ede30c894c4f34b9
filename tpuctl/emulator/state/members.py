"""Callers as policies name them: `user:ann@example.com`, `serviceAccount:EMAIL`."""

from __future__ import annotations

import re

from tpuctl.emulator.state.errors import invalid

__all__ = ["email_of", "member_of"]

_KINDS = ("user", "serviceAccount")


def member_of(email: str) -> str:
    """The caller of that e-mail as policies name it."""
    kind = "serviceAccount" if email.endswith(".gserviceaccount.com") else "user"
    return f"{kind}:{email}"


def email_of(member: str) -> str:
    """The e-mail of a member that can call; ApiError for what is none."""
    kind, _, email = member.partition(":")
    if kind not in _KINDS or not re.fullmatch(r"[^@\s]+@[^@\s]+", email):
        raise invalid(f"{member!r} is no caller, as user:ann@example.com or serviceAccount:EMAIL.")
    if member_of(email) != member:
        raise invalid(f"{email} is not of kind {kind}.")
    return email
