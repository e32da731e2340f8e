"""What a tool says about itself, and the one door to it: shared by L3, which guards calls, and L4, which plans them.

I1  A declaration is immutable, and `digest` changes when anything in it that carries meaning changes.
I2  Every argument has exactly one role; only declared arguments exist.
I3  A gateway gives an `Outcome` for every call, refused ones included; only `public` of it may reach a model.

Not on the `saggar run` path, so frozen slotted dataclasses are fine here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from saggar.core.decision import Decision

Role = Literal["target", "recipient", "destination", "amount", "credential", "content", "selector", "option"]
ROLES: tuple[Role, ...] = (
    "target",
    "recipient",
    "destination",
    "amount",
    "credential",
    "content",
    "selector",
    "option",
)
#: Roles whose value says who or what the call acts upon; an attacker who sets one has the call.
AUTHORITY_ROLES: frozenset[Role] = frozenset({"target", "recipient", "destination", "credential"})

ToolEffect = Literal["read", "write", "destructive", "egress", "pay"]
TOOL_EFFECTS: tuple[ToolEffect, ...] = ("read", "write", "destructive", "egress", "pay")
#: Effects that change something or leave the machine; their calls carry a one-shot id.
SIDE_EFFECTS: frozenset[ToolEffect] = frozenset({"write", "destructive", "egress", "pay"})

#: Least trusted last. `join` of two labels takes the later one.
INTEGRITY: tuple[str, ...] = ("user", "system", "directory", "untrusted")

TypeKind = Literal["string", "integer", "number", "decimal", "boolean", "array", "object", "json"]
#: `json` is any JSON value: allowed for `content` and for outputs only.
TYPE_KINDS: tuple[TypeKind, ...] = ("string", "integer", "number", "decimal", "boolean", "array", "object", "json")


class LabelLike(Protocol):
    """A label as L3 sees it: opaque but for these three.

    readers: who may see the value; `None` is everyone. sources: where it came from. integrity: one of `INTEGRITY`.
    """

    @property
    def integrity(self) -> str: ...

    @property
    def sources(self) -> frozenset[Any]: ...

    @property
    def readers(self) -> frozenset[str] | None: ...


@dataclass(frozen=True, slots=True)
class TypeSpec:
    """A closed subset of JSON Schema. format: `url`, `path`, `email`, `ip`, `date` or "" (strings only)."""

    kind: TypeKind
    nullable: bool = False
    format: str = ""
    items: TypeSpec | None = None
    enum: tuple[str | int, ...] = ()
    fields: tuple[tuple[str, TypeSpec], ...] = ()
    required: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The JSON Schema of the type; `decimal` is a string with a pattern."""
        out: dict[str, Any] = {}
        if self.kind == "decimal":
            out = {"type": "string", "format": "decimal"}
        elif self.kind != "json":
            out = {"type": self.kind}
        if self.format:
            out["format"] = self.format
        if self.enum:
            out["enum"] = list(self.enum)
        if self.items is not None:
            out["items"] = self.items.to_json()
        if self.kind == "object" and self.fields:
            out["properties"] = {name: spec.to_json() for name, spec in self.fields}
            out["required"] = list(self.required)
            out["additionalProperties"] = False
        if self.nullable:
            return {"anyOf": [out, {"type": "null"}]}
        return out


@dataclass(frozen=True, slots=True)
class ArgumentDeclaration:
    """One argument. default counts only when `required` is false; it is filled in before anything is decided."""

    name: str
    type: TypeSpec
    role: Role
    required: bool = True
    default: Any = None
    description: str = ""

    def to_json(self) -> dict[str, Any]:
        out: dict[str, Any] = {"type": self.type.to_json(), "role": self.role, "required": self.required}
        if not self.required:
            out["default"] = self.default
        if self.description:
            out["description"] = self.description
        return out


@dataclass(frozen=True, slots=True)
class FieldLabel:
    """What a tool declares about one output field.

    integrity: one of `INTEGRITY`. source: a name for where the value comes from, by default the tool's resource.
    readers: `*` for everyone, `owner` for the user alone, else a path of the output that holds the readers' names
    (`[].recipients`). private: the value is one that the lethal trifecta counts.
    names: people call the object by this field (a file name, an event's title), so picking by it with the user's own
    words is the user's choice. author: path of the output that says who wrote this field (`[].sender`). It decides
    something (what the user wrote counts as `directory`, what he names somebody as the writer of may be followed) only where
    the tool answers for that name: it is declared better than `untrusted` itself, or `vouched` says that nobody can
    write another's name there. A mail's `From` is neither, unless the service checks it (DMARC). A path that ends in `#` labels the list or object itself: its length, order and keys.
    """

    integrity: str = "untrusted"
    readers: str = "owner"
    source: str = ""
    private: bool = True
    names: bool = False
    author: str = ""
    vouched: bool = False

    def to_json(self) -> dict[str, Any]:
        out = {"integrity": self.integrity, "readers": self.readers, "source": self.source, "private": self.private}
        if self.names:
            out["names"] = True
        if self.vouched:
            out["vouched"] = True
        return out | ({"author": self.author} if self.author else {})


@dataclass(frozen=True, slots=True)
class Budget:
    """Upper bounds; `None` is no bound. calls: per task. bytes: of arguments and result together, per task.
    amount: sum over arguments of role `amount`, a decimal as text, per task."""

    calls: int | None = None
    bytes: int | None = None
    amount: str | None = None

    def to_json(self) -> dict[str, Any]:
        pairs = (("calls", self.calls), ("bytes", self.bytes), ("amount", self.amount))
        return {name: value for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True)
class ToolDeclaration:
    """Everything that a wall may know about a tool.

    operation, resource: the two words of the capability grammar. labels: output path (`*`, `subject`, `[].body`) to
    label; the longest path that fits wins and `*` is always there. primary: the argument that a positional selector
    names, or "". runs: `host` or `sandbox`. reversible: the effect can be undone by a further call.
    digest: SHA-256 (hex) over the canonical JSON of all the rest.
    """

    name: str
    operation: str
    resource: str
    effect: ToolEffect
    arguments: tuple[ArgumentDeclaration, ...]
    output: TypeSpec
    labels: tuple[tuple[str, FieldLabel], ...]
    description: str = ""
    primary: str = ""
    idempotent: bool = False
    reversible: bool = False
    runs: Literal["host", "sandbox"] = "host"
    budget: Budget = field(default_factory=Budget)
    digest: str = ""

    def argument(self, name: str) -> ArgumentDeclaration | None:
        return next((a for a in self.arguments if a.name == name), None)

    def with_role(self, *roles: Role) -> tuple[ArgumentDeclaration, ...]:
        return tuple(a for a in self.arguments if a.role in roles)

    @property
    def authority_arguments(self) -> tuple[ArgumentDeclaration, ...]:
        return tuple(a for a in self.arguments if a.role in AUTHORITY_ROLES)

    @property
    def has_side_effect(self) -> bool:
        return self.effect in SIDE_EFFECTS

    def label_of(self, path: str) -> FieldLabel:
        """The label of an output path; the longest declared path that is `path` or an ancestor of it wins."""
        best, length = FieldLabel(), -1
        for declared, label in self.labels:
            fits = declared in ("*", path) or path.startswith((declared + ".", declared + "["))
            size = 0 if declared == "*" else len(declared)
            if fits and size > length:
                best, length = label, size
        return best

    def parameters_schema(self) -> dict[str, Any]:
        """The JSON Schema of the arguments, as the two common message formats carry it."""
        properties: dict[str, Any] = {}
        for a in self.arguments:
            properties[a.name] = a.type.to_json() | ({"description": a.description} if a.description else {})
        return {
            "type": "object",
            "properties": properties,
            "required": [a.name for a in self.arguments if a.required],
            "additionalProperties": False,
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "operation": self.operation,
            "resource": self.resource,
            "effect": self.effect,
            "arguments": {a.name: a.to_json() for a in self.arguments},
            "order": [a.name for a in self.arguments],
            "output": self.output.to_json(),
            "labels": {path: label.to_json() for path, label in self.labels},
            "description": self.description,
            "primary": self.primary,
            "idempotent": self.idempotent,
            "reversible": self.reversible,
            "runs": self.runs,
            "budget": self.budget.to_json(),
        }


OutcomeStatus = Literal["done", "failed", "denied", "parked"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one call.

    done: `value` is the tool's result. failed: the tool ran and raised; its effect may have happened. denied: it did
    not run. parked: a human was asked and has not answered; `approval_id` resumes it. public: the one line that a
    model may read. call_id: the one-shot id under which the audit log knows the call.
    """

    status: OutcomeStatus
    decision: Decision
    value: Any = None
    call_id: str = ""
    approval_id: str = ""
    public: str = ""

    @property
    def done(self) -> bool:
        return self.status == "done"


class ToolGateway(Protocol):
    """The only way to a tool. Gives an `Outcome` for every call; raises only `InvariantBroken`."""

    def call(
        self,
        token: str,
        tool: str,
        args: Mapping[str, Any],
        *,
        labels: Mapping[str, LabelLike] | None = None,
        call_id: str = "",
    ) -> Outcome:
        """labels: argument name to label of its value; `None` where nobody tracked it. call_id: one-shot id of a call
        with side effects, so that a repeated step cannot repeat its effect; "" makes a fresh one."""
        ...

    def declaration(self, tool: str) -> ToolDeclaration | None: ...

    def declarations(self) -> Mapping[str, ToolDeclaration]: ...


class LabelRules(Protocol):
    """L4's say in L3's order of checks: a decision on one call from the labels of its arguments, or `None`."""

    def decide(
        self, declaration: ToolDeclaration, args: Mapping[str, Any], labels: Mapping[str, LabelLike]
    ) -> Decision | None: ...


class SandboxBody(Protocol):
    """Runs the body of a tool that declares `runs="sandbox"` inside the session's sandbox."""

    def run(self, declaration: ToolDeclaration, body: Any, args: Mapping[str, Any], timeout_s: float) -> Any: ...
