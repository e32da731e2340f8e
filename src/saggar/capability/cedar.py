"""Cedar policies beside our rules: they can refuse what ours allow, never allow what ours refuse.

I1  The answer is a denial or nothing. Cedar's own default (no policy permits) is a denial.
I2  An error of the engine or of a policy is a denial with the reason `cedar_error`.

`pip install cedarpy`. The request: principal `Holder::"<task>"`, action `Action::"<operation>"`, resource
`Tool::"<name>"`; the context holds `args` (what Cedar has a type for), `effect` and, for labelled arguments,
`integrity` by name. Numbers beyond 64 bits, fractions and nulls are given as texts, or left out where null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from saggar.capability.rule import CallView
from saggar.core.decision import DENY, Decision
from saggar.core.errors import Unenforceable, UsageError

REFUSED = "this call is not allowed"


class CedarPolicy:
    """A policy text, as one of `RuleSet`'s outside engines. principal: the id of the holder."""

    name = "cedar"

    def __init__(self, policies: str, *, principal: str) -> None:
        """Raises `Unenforceable` without `cedarpy`, `UsageError` for a text that Cedar does not read."""
        try:
            import cedarpy
        except ImportError:
            raise Unenforceable(
                "the policy has Cedar rules", cause="cedarpy is not installed", remedy="pip install cedarpy"
            ) from None
        self._cedar = cedarpy
        self._policies = policies
        self._principal = principal
        try:
            cedarpy.format_policies(policies)
        except ValueError as e:
            raise UsageError(f"the Cedar policies do not parse: {str(e).splitlines()[0][:200]}") from None

    def decide(self, call: CallView) -> Decision | None:
        """A denial, or None (I1)."""
        result = self._cedar.is_authorized(self._request(call), self._policies, [])
        reasons = [str(r) for r in result.diagnostics.reasons]
        errors = [str(e) for e in result.diagnostics.errors]
        if errors:
            return self._deny("cedar_error", {"errors": [e[:200] for e in errors[:4]]})
        return None if result.allowed else self._deny("cedar_deny", {"policies": reasons})

    def _request(self, call: CallView) -> dict[str, Any]:
        d = call.declaration
        integrity = {name: label.integrity for name, label in call.labels.items()}
        return {
            "principal": f"Holder::{_quoted(self._principal)}",
            "action": f"Action::{_quoted(d.operation)}",
            "resource": f"Tool::{_quoted(d.name)}",
            "context": {"args": plain(call.args), "effect": d.effect, "integrity": integrity},
        }

    def _deny(self, reason: str, detail: dict[str, Any]) -> Decision:
        return Decision(DENY, reason, layer="L3", rule="cedar", public=REFUSED, detail=detail)


def plain(value: Any) -> Any:
    """A value in Cedar's types: booleans, 64-bit integers, texts, sets and records."""
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value if v is not None]
    if isinstance(value, float) or (type(value) is int and not -(2**63) <= value < 2**63):
        return repr(value)
    return value


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
