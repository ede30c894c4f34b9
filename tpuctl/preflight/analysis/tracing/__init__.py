"""The functions of a script that a run reaches and XLA compiles, and the values in them."""
