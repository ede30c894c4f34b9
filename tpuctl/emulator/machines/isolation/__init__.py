"""The programs that hold a machine's namespaces and limit its disk, and what starts them."""
