"""What a wall says about one act.

I1  A decision is immutable.
I2  Only `public` may reach the sandbox, the model or a tool; `detail` goes to the audit log alone.
I3  `reason` is machine-readable (`lower_snake`), stable, and the same for the same cause on every path.

Plain slotted classes, not dataclasses: this module is on the `saggar run` path, where importing `dataclasses`
costs more than all of it.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal

    EffectName = Literal["allow", "ask", "deny"]

ALLOW: EffectName = "allow"
ASK: EffectName = "ask"
DENY: EffectName = "deny"

#: deny beats ask beats allow
STRENGTH: dict[str, int] = {ALLOW: 0, ASK: 1, DENY: 2}


class Frozen:
    """Base of value classes with `__slots__`: equality and hash by content, no change after construction."""

    __slots__: tuple[str, ...] = ()

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"`{type(self).__name__}` is immutable (`{name}`)")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"`{type(self).__name__}` is immutable (`{name}`)")

    def _key(self) -> tuple[object, ...]:
        return tuple(getattr(self, s) for s in self.__slots__)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash((type(self), self._key()))

    def __repr__(self) -> str:
        inner = ", ".join(f"{s}={getattr(self, s)!r}" for s in self.__slots__)
        return f"{type(self).__name__}({inner})"


class Decision(Frozen):
    """One verdict.

    effect: `allow`, `ask` or `deny`. reason: machine-readable cause. layer: `L1`..`L4`, `policy` or `approval`.
    rule: id of the rule that decided, or "" where none matched. public: one line that the subject may read.
    detail: JSON-ready facts for the audit log, never shown inside.
    """

    __slots__ = ("detail", "effect", "layer", "public", "reason", "rule")

    effect: EffectName
    reason: str
    layer: str
    rule: str
    public: str
    detail: dict[str, Any]

    def __init__(
        self,
        effect: EffectName,
        reason: str,
        *,
        layer: str,
        rule: str = "",
        public: str = "",
        detail: dict[str, Any] | None = None,
    ) -> None:
        self._set(effect=effect, reason=reason, layer=layer, rule=rule, public=public, detail=dict(detail or {}))

    def __hash__(self) -> int:
        return hash((self.effect, self.reason, self.layer, self.rule, self.public))

    @property
    def allowed(self) -> bool:
        return self.effect == ALLOW


def strongest(*decisions: Decision) -> Decision:
    """The decision that wins: deny over ask over allow, the first of equals."""
    return max(decisions, key=lambda d: STRENGTH[d.effect])
