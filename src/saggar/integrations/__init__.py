"""Adapters between Saggar and other people's loops and formats; none of them is a dependency."""
