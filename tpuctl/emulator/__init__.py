"""The local cloud: Google APIs on loopback, with real machines behind them."""
