"""The tamper-evident record of every decision: canonical JSON lines with a SHA-256 chain."""
