"""The argument hash that a holder signs, over the arguments as it sends them: it needs no declaration to make it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from saggar.audit import canonical


def request_hash(task: str, tool: str, args: Mapping[str, Any]) -> str:
    """SHA-256 (hex) over task, tool and arguments. Raises `ParseError`."""
    return hashlib.sha256(b"saggar-request-v1\0" + canonical.encode([task, tool, dict(args)])).hexdigest()
