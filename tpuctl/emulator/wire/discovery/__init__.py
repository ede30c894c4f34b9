"""Google's public API descriptions, reduced to the emulated methods."""
