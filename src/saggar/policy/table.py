"""What a policy file may say: one declaration from which parsing, the JSON schema, `show` and the docs follow.

To add a key, add a `Key` to `ROOT` and a keyword to the model class that its table builds. Nothing else knows the keys.

I1  A `Kind` gives a value or raises `WrongValue`; containers report every wrong member through `Report`.
I2  `show(parse(v))` parses to the same value.
"""

from __future__ import annotations

from saggar.policy import http, values
from saggar.policy.model import (
    TIERS,
    WORKSPACE_MODES,
    EgressPolicy,
    EgressRule,
    EnvironmentPolicy,
    IsolationPolicy,
    LimitsPolicy,
    Policy,
    WorkspacePolicy,
)
from saggar.policy.rules import check_rules
from saggar.policy.tool_rules import check_tool_rules, keep_all
from saggar.policy.tools import ToolExample, ToolRule, ToolsPolicy
from saggar.policy.values import WrongValue, kind_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Protocol

    from saggar.policy.positions import Path

    class Report(Protocol):
        """Where the walk tells what it finds."""

        def wrong(self, path: Path, message: str, hint: str = "") -> None: ...

        def unknown(self, path: Path, table: Table) -> None: ...

        def came_from_file(self, path: Path) -> None: ...

        def where(self, path: Path) -> str: ...


#: what a walk gives for a value that it reported
WRONG = object()


class Kind:
    """One way to write a value."""

    __slots__ = ("_parse", "_schema", "_show")

    def __init__(
        self,
        parse: Callable[[Any], Any],
        schema: dict[str, Any],
        show: Callable[[Any], Any] = lambda v: v,
    ) -> None:
        self._parse = parse
        self._schema = schema
        self._show = show

    def walk(self, value: Any, path: Path, report: Report) -> Any:
        """The parsed value; `WRONG` after something was reported."""
        try:
            parsed = self._parse(value)
        except WrongValue as e:
            report.wrong(path, e.message, e.hint)
            return WRONG
        if type(path[-1]) is str:
            report.came_from_file(path)
        return parsed

    def schema(self, default: Any = None) -> dict[str, Any]:
        """JSON Schema of the value; `default` is a parsed one."""
        return self._schema if default is None else {**self._schema, "default": self.show(default)}

    def show(self, value: Any) -> Any:
        """A parsed value as TOML or JSON would write it."""
        return self._show(value)


class Array(Kind):
    """An array of one kind, without repeats."""

    __slots__ = ("item",)

    def __init__(self, item: Kind) -> None:
        super().__init__(tuple, {})
        self.item = item

    def walk(self, value: Any, path: Path, report: Report) -> Any:
        if type(value) is not list:
            report.wrong(path, f"expected an array, not {kind_of(value)}")
            return WRONG
        report.came_from_file(path)
        items: list[Any] = []
        for i, member in enumerate(value):
            item = self.item.walk(member, (*path, i), report)
            if item is not WRONG and item in items:
                report.wrong((*path, i), f"`{values.show(member)}` stands here twice")
            items.append(item)
        return WRONG if WRONG in items else tuple(items)

    def schema(self, default: Any = None) -> dict[str, Any]:
        out = {"type": "array", "items": self.item.schema(), "uniqueItems": True}
        return out if default is None else {**out, "default": self.show(default)}

    def show(self, value: Any) -> Any:
        return [self.item.show(v) for v in value]


class Variables(Kind):
    """A table of environment variables, as sorted pairs."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(dict, {"type": "object", "additionalProperties": {"type": "string"}})

    def walk(self, value: Any, path: Path, report: Report) -> Any:
        if type(value) is not dict:
            report.wrong(path, f"expected a table, not {kind_of(value)}")
            return WRONG
        report.came_from_file(path)
        pairs = []
        for name, member in value.items():
            try:
                pairs.append((values.variable(name), values.text(member)))
            except WrongValue as e:
                report.wrong((*path, name), e.message, e.hint)
            else:
                report.came_from_file((*path, name))
        return tuple(sorted(pairs))

    def show(self, value: Any) -> Any:
        return dict(value)


class Terms(Kind):
    """A table of texts, as sorted pairs."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(dict, {"type": "object", "additionalProperties": {"type": "string"}})

    def walk(self, value: Any, path: Path, report: Report) -> Any:
        if type(value) is not dict:
            report.wrong(path, f"expected a table, not {kind_of(value)}", 'write `{ to = "*@example.com" }`')
            return WRONG
        report.came_from_file(path)
        wrong = False
        for name, member in value.items():
            try:
                values.text(member)
            except WrongValue as e:
                report.wrong((*path, name), e.message, e.hint)
                wrong = True
        return WRONG if wrong else tuple(sorted(value.items()))

    def show(self, value: Any) -> Any:
        return dict(value)


class Key:
    """One key of a table. attribute: the model's keyword, where it is not the key."""

    __slots__ = ("about", "attribute", "kind", "name", "required")

    def __init__(self, name: str, kind: Kind, about: str, *, attribute: str = "", required: bool = False) -> None:
        self.name = name
        self.kind = kind
        self.about = about
        self.attribute = attribute or name
        self.required = required


class Table(Kind):
    """A table that builds one model object from its keys."""

    __slots__ = ("keys", "make")

    def __init__(self, make: Callable[..., Any], *keys: Key) -> None:
        super().__init__(dict, {})
        self.make = make
        self.keys = {key.name: key for key in keys}

    def walk(self, value: Any, path: Path, report: Report) -> Any:
        if type(value) is not dict:
            report.wrong(path, f"expected a table, not {kind_of(value)}")
            return WRONG
        found: dict[str, Any] = {}
        for name, member in value.items():
            key = self.keys.get(name)
            if key is None:
                report.unknown((*path, name), self)
            else:
                found[key.attribute] = key.kind.walk(member, (*path, name), report)
        missing = [key.name for key in self.keys.values() if key.required and key.name not in value]
        # a key that is not known may be the missing one, misspelt: then that is the message
        for name in missing if set(value) <= set(self.keys) else ():
            report.wrong(path, f"`{name}` is missing", f"add `{name} = …`")
        return WRONG if missing or WRONG in found.values() else self.make(**found)

    def schema(self, default: Any = None) -> dict[str, Any]:
        properties = {}
        for key in self.keys.values():
            value = None if default is None else getattr(default, key.attribute)
            properties[key.name] = {**key.kind.schema(value), "description": key.about}
        out: dict[str, Any] = {"type": "object", "additionalProperties": False, "properties": properties}
        required = [key.name for key in self.keys.values() if key.required]
        return {**out, "required": required} if required else out

    def show(self, value: Any) -> Any:
        """Keys whose value is None are left out, unless None has a spelling of its own."""
        shown = {k.name: k.kind.show(getattr(value, k.attribute)) for k in self.keys.values()}
        return {name: v for name, v in shown.items() if v is not None}


class Tables(Kind):
    """An array of tables. check: looks at all of them together, with None for those that are wrong by themselves."""

    __slots__ = ("check", "item")

    def __init__(self, item: Table, check: Callable[[list[Any], Path, Report], tuple[Any, ...]]) -> None:
        super().__init__(tuple, {})
        self.item = item
        self.check = check

    def walk(self, value: Any, path: Path, report: Report) -> Any:
        if type(value) is not list:
            report.wrong(path, f"expected an array of tables, not {kind_of(value)}")
            return WRONG
        items = [self.item.walk(member, (*path, i), report) for i, member in enumerate(value)]
        for i in range(len(items)):
            report.came_from_file((*path, i))
        return self.check([None if item is WRONG else item for item in items], path, report)

    def schema(self, default: Any = None) -> dict[str, Any]:  # noqa: ARG002  # the default is none of them
        return {"type": "array", "items": self.item.schema()}

    def show(self, value: Any) -> Any:
        return [self.item.show(v) for v in value]


def choice(*words: str) -> Kind:
    """One of `words`."""

    def parse(value: Any) -> str:
        if type(value) is not str:
            raise WrongValue(f"expected one of {_list(words)}, not {kind_of(value)}")
        if value not in words:
            raise WrongValue(f"`{values.show(value)}` is not one of {_list(words)}")
        return value

    return Kind(parse, {"enum": list(words)})


def _list(words: tuple[str, ...]) -> str:
    return ", ".join(f"`{w}`" for w in words)


def integer(low: int, high: int) -> Kind:
    return Kind(lambda v: values.integer(v, low, high), {"type": "integer", "minimum": low, "maximum": high})


def real(low: float, high: float) -> Kind:
    return Kind(lambda v: values.real(v, low, high), {"type": "number", "minimum": low, "maximum": high})


def _text(parse: Callable[[Any], Any], pattern: str = "", show: Callable[[Any], Any] = lambda v: v) -> Kind:
    schema: dict[str, Any] = {"type": "string"}
    return Kind(parse, {**schema, "pattern": pattern} if pattern else schema, show)


def _show_size(value: int) -> str | int:
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        count, rest = divmod(value, values.SIZE_UNITS[unit])
        if count and not rest:
            return f"{count}{unit}"
    return value


def _show_duration(value: float | None) -> str:
    if value is None:
        return "none"
    for unit, seconds in (("h", 3600), ("m", 60), ("s", 1)):
        if value >= seconds and value % seconds == 0:
            return f"{int(value // seconds)}{unit}"
    return f"{value:.17g}s"


def _show_endpoint(value: tuple[str, int] | None) -> str | None:
    if value is None:
        return None
    return f"[{value[0]}]:{value[1]}" if ":" in value[0] else f"{value[0]}:{value[1]}"


BOOLEAN = Kind(values.boolean, {"type": "boolean"})


def _size(parse: Callable[[Any], int], least: int) -> Kind:
    texts = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(B|[KMGT]i?B)$"}
    return Kind(parse, {"oneOf": [{"type": "integer", "minimum": least, "maximum": 2**50}, texts]}, _show_size)


SIZE = _size(values.size, 1)
MEMORY = _size(values.memory, values.LEAST_MEMORY_BYTES)
DURATION_OR_NONE = Kind(
    values.duration_or_none,
    {
        "oneOf": [
            {"type": "number", "minimum": 0.001, "maximum": 366 * 86400},
            {"type": "string", "pattern": r"^(none|[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d))$"},
        ]
    },
    _show_duration,
)
HOST = _text(values.host, r"^[^\u0000-\u0020/:@%\\,*]*$|^\*\.[^\u0000-\u0020/:@%\\,*]+$")
PORT = integer(1, 65535)
ENDPOINT = _text(values.endpoint, r"^(\[[0-9a-fA-F:.]+\]|[0-9.]+):[0-9]{1,5}$", _show_endpoint)
PATH = _text(values.absolute_path, "^/", lambda v: v or None)
READABLE = _text(values.readable_path, "^/.")
PATTERN = _text(values.relative_pattern, "^[^/]")
VARIABLE = _text(values.variable, "^[^=]+$")
#: an id that the loader gave is no id of the file's
IDENTIFIER = _text(values.identifier, r"^[A-Za-z0-9._-]{1,64}$", lambda v: None if "[" in v else v or None)


class JsonTable(Kind):
    """A table kept as canonical JSON text; "" where there is none."""

    __slots__ = ()

    def schema(self, default: Any = None) -> dict[str, Any]:  # noqa: ARG002  # the default is none
        return self._schema


HTTP = JsonTable(http.http, http.HTTP_SCHEMA, http.shown)
BUDGET = JsonTable(http.budget, http.BUDGET_SCHEMA, http.shown)

EGRESS_RULE = Table(
    EgressRule,
    Key("host", HOST, "exact name, or `*.` and a name for one label in its place", required=True),
    Key("ports", Array(PORT), "TCP ports of the host"),
    Key("connect_to", ENDPOINT, "`ADDR:PORT` to dial in place of what DNS says; recorded in the audit log"),
    Key("http", HTTP, "credential, rules and budget of a host whose requests are read"),
    Key("allow_metadata", BOOLEAN, "let the name be one of a cloud's metadata service"),
    Key("enabled", BOOLEAN, "`false`: made ready, and refused until `saggar allow` names it"),
    Key("id", IDENTIFIER, "the rule's name in decisions, `egress.allow[N]` if left out"),
)

TEXT = _text(values.text)
ARGUMENTS = Kind(values.arguments, {"type": "object"}, values.show_arguments)

TOOL_RULE = Table(
    ToolRule,
    Key("id", IDENTIFIER, "the rule's name in decisions", required=True),
    Key("effect", choice("allow", "ask", "deny"), "deny beats ask beats allow", required=True),
    Key("reason", TEXT, "one line for people, shown where the rule asks"),
    Key("tool", TEXT, "the tool's name, or `*`"),
    Key("capability", TEXT, "`operation:resource`, in place of `tool`"),
    Key("when", Terms(), "argument to term; the rule fits when all hold"),
    Key("roles", Terms(), "role to term, over every argument of that role"),
    Key("unless", Terms(), "argument to term; an ask or a deny does not fit when all hold"),
    Key("accepts", Array(TEXT), "built-in rules that an allow answers for"),
    Key("human_only", BOOLEAN, "only a person may approve what this rule asks"),
    Key(
        "example",
        Tables(
            Table(
                ToolExample,
                Key("args", ARGUMENTS, "the arguments of a call", required=True),
                Key("fits", BOOLEAN, "whether the rule fits it", required=True),
            ),
            keep_all,
        ),
        "calls that show what the rule means; one that comes out otherwise stops the load",
    ),
)

ROOT = Table(
    Policy,
    Key(
        "isolation",
        Table(
            IsolationPolicy,
            Key("tier", choice(*TIERS), "the least tier that will do; `auto` takes the strongest that works"),
            Key("read", Array(READABLE), "host paths shown read-only at the same place inside"),
        ),
        "where the command runs",
    ),
    Key(
        "limits",
        Table(
            LimitsPolicy,
            Key("memory", MEMORY, "memory of the whole tree of processes", attribute="memory_bytes"),
            Key("tasks", integer(1, 4_194_304), "processes and threads of the whole tree"),
            Key("cpus", real(0.01, 4096), "processors"),
            Key("disk", SIZE, "what the command may write, in all", attribute="disk_bytes"),
            Key("output", SIZE, "captured output; passed-through output has no limit", attribute="output_bytes"),
            Key("timeout", DURATION_OR_NONE, "wall-clock time, or `none`", attribute="timeout_s"),
            Key("require", choice("any", "enforced"), "`enforced` refuses a limit that can only be watched"),
        ),
        "how much the command may use",
    ),
    Key(
        "workspace",
        Table(
            WorkspacePolicy,
            Key("path", PATH, "the directory, the current one if left out"),
            Key("mode", choice(*WORKSPACE_MODES), "how the command sees it"),
            Key("protect", Array(PATTERN), "further paths that `apply` refuses unless they are named"),
            Key("unsafe_broad", BOOLEAN, "let the workspace be `/` or a home directory"),
        ),
        "the files that the command works on",
    ),
    Key(
        "egress",
        Table(
            EgressPolicy,
            Key("budget", BUDGET, "what the whole task may use of the network"),
            Key("processes", integer(1, 4), "processes that share the task's connections among them"),
            Key("allow", Tables(EGRESS_RULE, check_rules), "hosts that the command may reach"),
        ),
        "the way out",
    ),
    Key(
        "environment",
        Table(
            EnvironmentPolicy,
            Key("set", Variables(), "variables that the command gets"),
            Key("pass", Array(VARIABLE), "variables that it gets from the caller's environment", attribute="pass_"),
        ),
        "the environment, empty otherwise",
    ),
    Key(
        "tools",
        Table(
            ToolsPolicy,
            Key("modules", Array(TEXT), "Python modules whose tools the command line loads"),
            Key("capabilities", Array(TEXT), "`operation:resource[selector]`: all that the task may do with its tools"),
            Key(
                "amount_drift_percent",
                integer(0, 25),
                "how far a worker may move an amount from a trusted one without a question (PLANS.md)",
            ),
            Key("rule", Tables(TOOL_RULE, check_tool_rules), "rules over calls of tools"),
        ),
        "what the agent's tools may do",
    ),
)


def keys_below(table: Table, path: str = "") -> Iterator[tuple[str, Key]]:
    """Every key of a table and of the tables in it, with the dotted path of its table."""
    for key in table.keys.values():
        yield path, key
        inner = key.kind.item if isinstance(key.kind, Tables) else key.kind
        if isinstance(inner, Table):
            yield from keys_below(inner, f"{path}.{key.name}" if path else key.name)
