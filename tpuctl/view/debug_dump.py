"""What an archive for a bug report contains, on stdout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tpuctl.units import decimal_size
from tpuctl.view.terminal.tables import print_facts, print_table
from tpuctl.view.terminal.text_wrapping import print_wrapped

if TYPE_CHECKING:
    from tpuctl.model.troubleshooting.debug_dump import Dump

KEPT = "Names of the stack, of buckets and files, and what your scripts print are kept."


def show_contents(dump: Dump) -> None:
    """List the files, what is missing, and what was replaced in them."""
    rows = [(file.name, decimal_size(file.size), file.about) for file in dump.files]
    print_table(["file", "size", "content"], rows, numbers=["size"])
    if dump.omitted:
        print("\nNot included:")
        print_facts((f"    {name}", reason) for name, reason in dump.omitted.items())
    kinds = [f"{kind.replace('-', ' ')} ({count})" for kind, count in dump.replaced.items()]
    print_wrapped(f"\nReplaced by placeholders: {', '.join(kinds) or 'nothing'}.\n{KEPT}\n")
