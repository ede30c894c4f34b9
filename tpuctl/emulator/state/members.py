"""Policy members: `user:ann@example.com`, `serviceAccount:EMAIL`."""

from __future__ import annotations

import re

from tpuctl.emulator.state.errors import invalid

_KINDS = ("user", "serviceAccount")


def member_of(email: str) -> str:
    """The policy member of a caller's email."""
    kind = "serviceAccount" if email.endswith(".gserviceaccount.com") else "user"
    return f"{kind}:{email}"


def email_of(member: str) -> str:
    """The email of a user or service account member; ApiError for any other member."""
    kind, _, email = member.partition(":")
    if kind not in _KINDS or not re.fullmatch(r"[^@\s]+@[^@\s]+", email):
        raise invalid(
            f"Invalid member {member!r}: use user:ann@example.com or serviceAccount:EMAIL."
        )
    if member_of(email) != member:
        raise invalid(f"Invalid member {member!r}: {email} is not a {kind}.")
    return email
