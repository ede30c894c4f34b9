"""What every test relies on."""

from __future__ import annotations

import signal

# A shell starts what runs in the background with Ctrl-C ignored, and programs hand that on to those
# that they start: the tests would then press a key that nobody hears.
signal.signal(signal.SIGINT, signal.default_int_handler)
