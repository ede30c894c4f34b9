"""`python -m tpuctl`, and the `tpuctl` command."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    from tpuctl.cli.app import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
