"""The effective policy, as text or JSON, with the origin of each value.

I1  `parse(to_toml(p))` gives a policy equal to `p` but for file and origins.
I2  Every leaf has exactly one origin: `default`, `FILE:LINE` or `flag`.
"""

from __future__ import annotations

from saggar.policy.model import Policy
from saggar.policy.table import ROOT, Table, Tables, Variables
from saggar.policy.values import key_text, quoted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from saggar.policy.table import Key


def to_json(policy: Policy) -> dict[str, Any]:
    """`{"file", "policy", "origins"}`; `policy` validates against the published schema."""
    origins = {path: _origin(policy, path) for path in _leaves(ROOT, policy, "")}
    return {"file": policy.file, "policy": ROOT.show(policy), "origins": origins}


def to_toml(policy: Policy) -> str:
    """A policy file that says the same, each value followed by its origin."""
    writer = _Writer(policy)
    for key in ROOT.keys.values():
        writer.member(key, getattr(policy, key.attribute), key.name, key.name)
    return "\n".join(writer.lines).strip() + "\n"


class _Writer:
    """Collects lines. path: of origins, with indices; title: of headers, where TOML has none."""

    __slots__ = ("_policy", "lines")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.lines: list[str] = []

    def member(self, key: Key, value: Any, path: str, title: str) -> None:
        kind = key.kind
        if isinstance(kind, Table):
            self._table(kind, value, path, title, f"[{title}]")
        elif isinstance(kind, Tables):
            for i, item in enumerate(value):
                self._table(kind.item, item, f"{path}[{i}]", title, f"[[{title}]]")
            if not value:
                self.lines += ["", f"# no [[{title}]]"]
        elif value:
            self.lines += ["", f"[{title}]", *_commented([self._row(n, v, f"{path}.{key_text(n)}") for n, v in value])]

    def _table(self, table: Table, value: Any, path: str, title: str, header: str) -> None:
        rows, nested = [], []
        for key in table.keys.values():
            inner = getattr(value, key.attribute)
            if isinstance(key.kind, (Table, Tables, Variables)):
                nested.append((key, inner))
            elif (shown := key.kind.show(inner)) is not None:
                rows.append(self._row(key.name, shown, f"{path}.{key.name}"))
        if rows or not nested:
            self.lines += ["", header, *_commented(rows)]
        for key, inner in nested:
            self.member(key, inner, f"{path}.{key.name}", f"{title}.{key.name}")

    def _row(self, name: str, value: Any, path: str) -> tuple[str, str]:
        return f"{key_text(name)} = {literal(value)}", _origin(self._policy, path)


def _commented(rows: list[tuple[str, str]]) -> Iterator[str]:
    width = min(max((len(text) for text, _ in rows), default=0), 48)
    return (f"{text:<{width}}  # {origin}" for text, origin in rows)


def _leaves(table: Table, value: Any, path: str) -> Iterator[str]:
    for key in table.keys.values():
        inner = getattr(value, key.attribute)
        here = f"{path}.{key.name}" if path else key.name
        if isinstance(key.kind, Table):
            yield from _leaves(key.kind, inner, here)
        elif isinstance(key.kind, Tables):
            for i, item in enumerate(inner):
                yield from _leaves(key.kind.item, item, f"{here}[{i}]")
        elif isinstance(key.kind, Variables):
            yield from (f"{here}.{key_text(name)}" for name, _ in inner)
        elif key.kind.show(inner) is not None:
            yield here


def _origin(policy: Policy, path: str) -> str:
    """Of the value itself, else of the rule around it, where a flag made the whole rule."""
    origin = policy.origins.get(path)
    if origin is None:
        rule = policy.origins.get(path.rpartition(".")[0]) if path.rpartition(".")[0].endswith("]") else None
        origin = rule if rule is not None and rule.kind == "flag" else None
    # a file's name is input: it must not end the comment that it stands in
    return quoted(str(origin))[1:-1] if origin else "default"


def literal(value: Any) -> str:
    """A value as TOML writes it, on one line, with nothing that a terminal would obey."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(literal(v) for v in value) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key_text(name)} = {literal(member)}" for name, member in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return quoted(str(value))
