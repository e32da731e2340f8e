"""Where a value came from, who may read it, and how far it may be trusted.

I1  A label is immutable; the join is commutative, associative and idempotent, with `NEUTRAL` as identity.
I2  The join is the least upper bound of `flows_to`: it only adds sources, only removes readers, only lowers integrity.
I3  Integrity of a join is the least of its parts: a trusted source never lifts an untrusted one.
I4  `readers` None means anybody; the empty set means nobody but the run itself. Absence of knowledge is never `None`:
    `from_json` refuses a label without the field.

Shared by L3 (declared labels of tool outputs, rules by role) and L4 (labels on every value); imports nothing of either.
"""

from __future__ import annotations

from saggar.core.decision import Frozen
from saggar.core.errors import ParseError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Literal

    Integrity = Literal["user", "system", "directory", "untrusted"]

USER: Integrity = "user"
SYSTEM: Integrity = "system"
DIRECTORY: Integrity = "directory"
UNTRUSTED: Integrity = "untrusted"

#: higher is more trusted; the join takes the least
RANK: dict[str, int] = {UNTRUSTED: 0, DIRECTORY: 1, SYSTEM: 2, USER: 3}

SOURCE_KINDS = ("user", "system", "tool", "worker")

#: a hostile run cannot make one label grow without end; beyond this the sources are folded into `MANY`
MAX_SOURCES = 512
MAX_READERS = 4096


class Source(Frozen):
    """One origin of a value.

    kind: `user` (the request, or an answer that the user gave), `system` (us, or a literal of the planner's),
    `tool`, or `worker` (the quarantined model: it transforms, it never endorses).
    name: tool name; call: id of the call in the run; field: dotted path in its output (`[].sender` for each element);
    principal: who wrote it, where the tool knows (`mark@example.com`). span: start and end in the user's request, in
    characters, for literals that were taken from it; (-1, -1) elsewhere.
    """

    __slots__ = ("call", "field", "kind", "name", "principal", "span")

    kind: str
    name: str
    call: str
    field: str
    principal: str
    span: tuple[int, int]

    def __init__(
        self,
        kind: str,
        name: str = "",
        *,
        call: str = "",
        field: str = "",
        principal: str = "",
        span: tuple[int, int] = (-1, -1),
    ) -> None:
        self._set(kind=kind, name=name, call=call, field=field, principal=principal, span=span)

    def __str__(self) -> str:
        """For cards and traces: `tool read_inbox[].body by mark@example.com (call c3)`."""
        what = f"{self.kind} {self.name}".rstrip() + (f".{self.field}" if self.field else "")
        who = f" by {self.principal}" if self.principal else ""
        where = f" (call {self.call})" if self.call else ""
        span = f" [{self.span[0]}:{self.span[1]}]" if self.span != (-1, -1) else ""
        return f"{what}{who}{where}{span}"

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"kind": self.kind}
        out.update({k: v for k in ("name", "call", "field", "principal") if (v := getattr(self, k))})
        if self.span != (-1, -1):
            out["span"] = list(self.span)
        return out

    @staticmethod
    def from_json(raw: object) -> Source:
        """The source that `to_json` wrote. Raises `ParseError` on anything else."""
        if not isinstance(raw, dict) or raw.get("kind") not in SOURCE_KINDS:
            raise ParseError("a source is an object with a known `kind`", reason="label_source")
        extra = set(raw) - {"kind", "name", "call", "field", "principal", "span"}
        texts = {k: raw.get(k, "") for k in ("name", "call", "field", "principal")}
        if extra or not all(isinstance(v, str) for v in texts.values()):
            raise ParseError("a source has unknown or non-text fields", reason="label_source")
        span = raw.get("span", [-1, -1])
        if not (isinstance(span, list) and len(span) == 2 and all(type(n) is int for n in span)):
            raise ParseError("`span` is two integers", reason="label_source")
        return Source(
            raw["kind"],
            texts["name"],
            call=texts["call"],
            field=texts["field"],
            principal=texts["principal"],
            span=(span[0], span[1]),
        )


#: what the planner made up: in no words of the request
PLANNER = Source("system", "planner")
#: stands for sources that were folded away, whoever they were; a rule that asks where a value came from takes it for a
#: stranger, so it asks which sources it knows to be good, never that none is bad
MANY = Source("system", "many")


class Label(Frozen):
    """Sources, readers and integrity of one value. readers: principals, or None for anybody."""

    __slots__ = ("integrity", "readers", "sources")

    sources: frozenset[Source]
    readers: frozenset[str] | None
    integrity: Integrity

    def __init__(
        self,
        sources: Iterable[Source] = (),
        *,
        readers: Iterable[str] | None = None,
        integrity: Integrity = USER,
    ) -> None:
        if integrity not in RANK:
            raise ParseError(f"unknown integrity `{integrity}`", reason="label_integrity")
        kept = frozenset(sources)
        if len(kept) > MAX_SOURCES or MANY in kept:
            kept = frozenset((MANY,))
        self._set(
            sources=kept,
            readers=None if readers is None else frozenset(readers),
            integrity=integrity,
        )

    def join(self, *others: Label) -> Label:
        return join(self, *others)

    def flows_to(self, other: Label) -> bool:
        """The partial order of I2: everything that `self` demands, `other` demands too."""
        return (
            (self.sources <= other.sources or MANY in other.sources)
            and (self.readers is None or (other.readers is not None and other.readers <= self.readers))
            and RANK[other.integrity] <= RANK[self.integrity]
        )

    def at_least(self, integrity: Integrity) -> bool:
        return RANK[self.integrity] >= RANK[integrity]

    @property
    def own_words(self) -> bool:
        """Whether all of it is the user's, by sources that are still known."""
        return self.integrity == USER and bool(self.sources) and MANY not in self.sources

    def may_read(self, principal: str) -> bool:
        return self.readers is None or principal in self.readers

    def replace(self, **changes: Any) -> Label:
        kept = {"readers": self.readers, "integrity": self.integrity, "sources": self.sources} | changes
        return Label(kept["sources"], readers=kept["readers"], integrity=kept["integrity"])

    def to_json(self) -> dict[str, Any]:
        """Stable order, so that equal labels give equal bytes."""
        return {
            "sources": sorted((s.to_json() for s in self.sources), key=repr),
            "readers": None if self.readers is None else sorted(self.readers),
            "integrity": self.integrity,
        }

    @staticmethod
    def from_json(raw: object) -> Label:
        """The label that `to_json` wrote. Raises `ParseError` on anything else (I4: a missing field is an error)."""
        if not isinstance(raw, dict) or set(raw) != {"sources", "readers", "integrity"}:
            raise ParseError("a label is an object of `sources`, `readers` and `integrity`", reason="label")
        sources, readers, integrity = raw["sources"], raw["readers"], raw["integrity"]
        if not isinstance(sources, list) or len(sources) > MAX_SOURCES + 1:
            raise ParseError("`sources` is a bounded list", reason="label_source")
        bad = readers is not None and not (
            isinstance(readers, list) and len(readers) <= MAX_READERS and all(isinstance(r, str) for r in readers)
        )
        if bad:
            raise ParseError("`readers` is a bounded list of text, or null for anybody", reason="label_readers")
        if integrity not in (USER, SYSTEM, DIRECTORY, UNTRUSTED):
            raise ParseError("`integrity` is user, system, directory or untrusted", reason="label_integrity")
        return Label((Source.from_json(s) for s in sources), readers=readers, integrity=integrity)


#: identity of the join: no source, anybody may read, nothing lowers it
NEUTRAL = Label()
#: of what the planner made up
PLANNED = Label((PLANNER,), integrity=SYSTEM)


def join(*labels: Label) -> Label:
    """Union of sources, intersection of readers, least integrity; `NEUTRAL` for none."""
    if len(labels) == 1:
        return labels[0]
    first = labels[0] if labels else NEUTRAL
    if all(other is first or other is NEUTRAL for other in labels):
        return first  # the common case on the decision path: nothing new to fold in
    sources: frozenset[Source] = frozenset().union(*(x.sources for x in labels))
    readers: frozenset[str] | None = None
    for one in labels:
        if one.readers is not None:
            readers = one.readers if readers is None else readers & one.readers
    integrity = min((x.integrity for x in labels), key=RANK.__getitem__)
    return Label(sources, readers=readers, integrity=integrity)


def join_all(labels: Iterable[Label]) -> Label:
    return join(*labels)
