"""Four independent walls between an AI agent and everything else.

Names are loaded on first use: `saggar run` must not pay for what it does not use.
"""

# no `from __future__` here: it is an import, and `python -m` has not yet let go of the current directory (see `__main__`)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

# public name -> module that defines it
_EXPORTS: dict[str, str] = {
    "Ask": "saggar.runtime.held",
    "Budget": "saggar.core.tool",
    "Decision": "saggar.core.decision",
    "Denied": "saggar.core.errors",
    "FieldLabel": "saggar.core.tool",
    "InvariantBroken": "saggar.core.errors",
    "LimitExceeded": "saggar.core.errors",
    "Outcome": "saggar.core.tool",
    "open_session": "saggar.runtime.session_host",
    "PeerError": "saggar.core.errors",
    "Policy": "saggar.policy.model",
    "Process": "saggar.runtime.api_host",
    "Result": "saggar.runtime.result",
    "Rule": "saggar.capability.rule",
    "run": "saggar.runtime.api_host",
    "run_sync": "saggar.runtime.api_host",
    "SaggarError": "saggar.core.errors",
    "spawn": "saggar.runtime.api_host",
    "Tool": "saggar.capability.declare",
    "tool": "saggar.capability.declare",
    "tool_from_schema": "saggar.capability.declare",
    "ToolLoop": "saggar.integrations.messages",
    "ToolSession": "saggar.runtime.tools_host",
    "Unenforceable": "saggar.core.errors",
    "UsageError": "saggar.core.errors",
    "Verdict": "saggar.runtime.held",
}

__all__ = sorted([*_EXPORTS, "__version__"])  # noqa: PLE0605  # kept beside the table it mirrors


def __getattr__(name: str) -> "Any":
    module = _EXPORTS.get(name)
    if module is None:
        raise AttributeError(f"module `saggar` has no attribute `{name}`")
    from importlib import import_module

    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
