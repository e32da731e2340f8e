"""Four independent walls between an AI agent and everything else.

Names are loaded on first use: `saggar run` must not pay for what it does not use.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS: dict[str, str] = {
    "Policy": "saggar.policy.model",
    "Process": "saggar.runtime.api_host",
    "Result": "saggar.runtime.result",
    "run": "saggar.runtime.api_host",
    "run_sync": "saggar.runtime.api_host",
    "spawn": "saggar.runtime.api_host",
    "Decision": "saggar.core.decision",
    "Denied": "saggar.core.errors",
    "InvariantBroken": "saggar.core.errors",
    "LimitExceeded": "saggar.core.errors",
    "PeerError": "saggar.core.errors",
    "SaggarError": "saggar.core.errors",
    "Unenforceable": "saggar.core.errors",
    "UsageError": "saggar.core.errors",
}

__all__ = sorted([*_EXPORTS, "__version__"])  # noqa: PLE0605  # kept beside the table it mirrors


def __getattr__(name: str) -> Any:
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module `saggar` has no attribute `{name}`")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
