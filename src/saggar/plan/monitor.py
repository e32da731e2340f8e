"""Monitor mode: judges the calls of an ordinary tool-calling loop by where their values were seen before. HEURISTIC.

For people who cannot move to plans yet. It is a net with holes, and says so in every decision (`rule` begins with
`monitor.`, `detail` carries `"heuristic": true`): a model that re-words what it read is not seen through, text content
is not followed at all, and the model itself sees every hostile text.

I1  A tool that was not granted, or was called as often as it was granted, is a denial.
I2  An authority value counts as the user's where his words have it, as an object that the user named where the record
    that held it goes by a name in his words, as untrusted where some tool's output held it, and otherwise as made up.
    Untrusted asks; made up is a denial.
I3  What a call returned is seen by `observe` alone; nothing is trusted for having been called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from saggar.core.decision import ALLOW, ASK, DENY, Decision
from saggar.core.label import UNTRUSTED
from saggar.core.tool import AUTHORITY_ROLES, ArgumentDeclaration, ToolDeclaration
from saggar.plan.defang import defang
from saggar.plan.flow import PUBLIC
from saggar.plan.operation import folded
from saggar.plan.output import Owner

Origin = Literal["user", "named", "record", "untrusted", "made_up"]
#: worst first
ORDER: tuple[Origin, ...] = ("made_up", "untrusted", "record", "named", "user")
MAX_SEEN = 20_000
MAX_HAYSTACK = 4_000_000


@dataclass(slots=True)
class Monitor:
    """One session of one request. granted: tool to number of calls."""

    request: str
    tools: Mapping[str, ToolDeclaration]
    granted: Mapping[str, int]
    owner: Owner = field(default_factory=Owner)
    calls: dict[str, int] = field(default_factory=dict)
    #: value to its best origin among the tools' records
    records: dict[str, Origin] = field(default_factory=dict)
    #: every text that a tool gave, folded
    seen: list[str] = field(default_factory=list)
    size: int = 0
    #: the request, folded once: every leaf is held against it
    words: str = ""

    def __post_init__(self) -> None:
        self.words = f" {folded(self.request)} "

    def decide(self, tool: str, args: Mapping[str, Any]) -> Decision:
        """The verdict on one call. An allowed (or approved) call is to be followed by `spend`."""
        declaration = self.tools.get(tool)
        if declaration is None or tool not in self.granted:
            return self.say(DENY, "tool_not_granted", tool, {})
        if self.calls.get(tool, 0) >= self.granted[tool]:
            return self.say(DENY, "calls_spent", tool, {})
        origins = {a.name: self.worst(args[a.name]) for a in self.guarded(declaration) if args.get(a.name) is not None}
        if "made_up" in origins.values():
            return self.say(DENY, "value_out_of_nowhere", tool, origins)
        if "untrusted" in origins.values():
            return self.say(ASK, "untrusted_authority", tool, origins)
        if "record" in origins.values():
            return self.say(ASK, "object_not_named", tool, origins)
        return self.say(ALLOW, "values_seen", tool, origins)

    def prepare(self, tool: str, args: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments as they may leave: in what goes to others, links that the user did not write are made inert."""
        declaration = self.tools[tool]
        goes_out = declaration.has_side_effect and bool(declaration.with_role("recipient", "destination"))
        content = {a.name for a in declaration.with_role("content")} if goes_out else set()
        return {k: defang(v, self.request) if k in content and isinstance(v, str) else v for k, v in args.items()}

    def spend(self, tool: str) -> None:
        self.calls[tool] = self.calls.get(tool, 0) + 1

    def guarded(self, declaration: ToolDeclaration) -> Iterator[ArgumentDeclaration]:
        for argument in declaration.arguments:
            if declaration.has_side_effect:
                if argument.role in AUTHORITY_ROLES or (argument.role == "amount" and declaration.effect == "pay"):
                    yield argument
            elif argument.role in ("destination", "credential"):
                yield argument

    def worst(self, value: Any) -> Origin:
        found = [self.origin(leaf) for leaf in _leaves(value)]
        return min(found, key=ORDER.index) if found else "user"

    def origin(self, leaf: Any) -> Origin:
        """I2, for one scalar."""
        if isinstance(leaf, bool) or leaf is None:
            return "user"
        text = str(leaf)
        whole = isinstance(leaf, float) and leaf.is_integer()
        if self.goes_by(text) or (whole and self.goes_by(str(int(leaf)))):
            return "user"
        record = self.records.get(text)
        if record == "named":
            return "named"
        needle = f" {folded(text)} "
        if record is None and not any(needle in hay for hay in self.seen):
            # a number may be computed from what was seen; a name, an address or an id may not
            return "untrusted" if isinstance(leaf, int | float) else "made_up"
        return record or "untrusted"

    def know(self, values: Iterable[str]) -> None:
        """Identifiers of a provider's own records that the session has seen by other means than `observe`."""
        for value in values:
            self.records.setdefault(value, "record")

    def observe(self, tool: str, value: Any) -> None:
        """What a call returned (I3)."""
        declaration = self.tools.get(tool)
        if declaration is not None:
            self.walk(declaration, value, "", named=False)

    def walk(self, declaration: ToolDeclaration, value: Any, path: str, *, named: bool) -> None:
        if isinstance(value, list):
            for item in value:
                self.walk(declaration, item, path + "[]", named=named)
        elif isinstance(value, Mapping):
            prefix = path + "." if path else ""
            named = named or any(
                isinstance(v, str) and declaration.label_of(prefix + k).names and self.goes_by(v)
                for k, v in value.items()
            )
            for k, v in value.items():
                self.walk(declaration, v, prefix + k, named=named)
        elif value is not None and not isinstance(value, bool):
            self.leaf(declaration, value, path, named=named)

    def leaf(self, declaration: ToolDeclaration, value: Any, path: str, *, named: bool) -> None:
        text = str(value)
        trusted = declaration.label_of(path).integrity != UNTRUSTED
        if trusted and len(self.records) < MAX_SEEN:
            origin: Origin = "named" if named or self.goes_by(text) else "record"
            self.records[text] = max(origin, self.records.get(text, origin), key=ORDER.index)
        if self.size < MAX_HAYSTACK:
            self.seen.append(f" {folded(text)} ")
            self.size += len(text)

    def goes_by(self, name: str) -> bool:
        """Whether the user's words have the name, whole."""
        needle = folded(name)
        return bool(needle) and f" {needle} " in self.words

    def say(self, effect: Any, reason: str, tool: str, origins: Mapping[str, Origin]) -> Decision:
        detail = {"heuristic": True, "tool": tool, "origins": dict(origins)}
        return Decision(effect, reason, layer="L4", rule=f"monitor.{reason}", public=PUBLIC, detail=detail)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _leaves(item)
    else:
        yield value
