"""The base of the policy's value classes."""

from __future__ import annotations

from saggar.core.decision import Frozen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Self


class Section(Frozen):
    """A value class built from keywords that are its slots."""

    __slots__ = ()

    def replace(self, **changes: Any) -> Self:
        slots: tuple[str, ...] = self.__slots__
        return type(self)(**{s: changes.get(s, getattr(self, s)) for s in slots})
