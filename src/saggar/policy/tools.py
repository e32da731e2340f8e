"""`[tools]`: which capabilities a task has, and the rules over its tools.

Texts only: what they mean depends on the tools' declarations, so `capability` binds and checks them when the session
starts. Plain slotted classes as in `policy.model`.
"""

from __future__ import annotations

from saggar.policy.section import Section

TYPE_CHECKING = False
if TYPE_CHECKING:
    Pairs = tuple[tuple[str, str], ...]


class ToolExample(Section):
    """A call and whether its rule fits it. args: the arguments as JSON text."""

    __slots__ = ("args", "fits")
    args: str
    fits: bool

    def __init__(self, *, args: str, fits: bool) -> None:
        self._set(args=args, fits=fits)


class ToolRule(Section):
    """One `[[tools.rule]]`. effect: allow, ask or deny. when, unless: argument to term; roles: role to term, as pairs
    sorted by name. tool: a name or `*`; capability: `operation:resource` in its place."""

    __slots__ = (
        "accepts",
        "capability",
        "effect",
        "example",
        "human_only",
        "id",
        "reason",
        "roles",
        "tool",
        "unless",
        "when",
    )
    id: str
    effect: str
    reason: str
    tool: str
    capability: str
    when: Pairs
    roles: Pairs
    unless: Pairs
    accepts: tuple[str, ...]
    human_only: bool
    example: tuple[ToolExample, ...]

    def __init__(
        self,
        *,
        id: str,  # noqa: A002  # the policy file's own word
        effect: str,
        reason: str = "",
        tool: str = "",
        capability: str = "",
        when: Pairs = (),
        roles: Pairs = (),
        unless: Pairs = (),
        accepts: tuple[str, ...] = (),
        human_only: bool = False,
        example: tuple[ToolExample, ...] = (),
    ) -> None:
        self._set(
            id=id,
            effect=effect,
            reason=reason,
            tool=tool,
            capability=capability,
            when=when,
            roles=roles,
            unless=unless,
            accepts=accepts,
            human_only=human_only,
            example=example,
        )


class ToolsPolicy(Section):
    """`[tools]`. modules: Python modules that declare the tools, for the command line. capabilities: texts of the
    grammar, all that the task may do. rule: in file order; without any, each capability allows its tools.
    amount_drift_percent: how far a worker may move an amount from a trusted one without a question (`plan.amount`)."""

    __slots__ = ("amount_drift_percent", "capabilities", "modules", "rule")
    amount_drift_percent: int
    capabilities: tuple[str, ...]
    modules: tuple[str, ...]
    rule: tuple[ToolRule, ...]

    def __init__(
        self,
        *,
        capabilities: tuple[str, ...] = (),
        modules: tuple[str, ...] = (),
        rule: tuple[ToolRule, ...] = (),
        amount_drift_percent: int = 0,
    ) -> None:
        self._set(amount_drift_percent=amount_drift_percent, capabilities=capabilities, modules=modules, rule=rule)
