"""Opens pages in the user's browser."""

from __future__ import annotations

import os
import sys


def open_page(url: str) -> bool:
    """Open a page; False if there is no browser with windows, as in an SSH session.

    Returns when the browser has the page, which is immediate unless BROWSER names one in a
    terminal.
    """
    has_display = any(map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")))
    if not has_display and sys.platform != "darwin":
        return False  # `webbrowser` would start one in this terminal
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
