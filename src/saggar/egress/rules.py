"""What may be asked of an allowed host: methods, canonical paths, query, headers, content type, size.

I1  No rule is a deny; deny beats approve beats ask beats allow, in whatever order the file has them. `approve` is an allow
    that answers an ask as well.
I2  A deny rule matches at least what an allow rule with the same conditions matches, and whatever some server may take for
    the same: paths without regard to case, to a last `/`, to dots behind a name and to how a character is escaped or
    composed, query and headers at any occurrence and under any spelling of the name. An allow rule needs the name as it is written, and every value that some
    server may read under it to match: those under its other spellings, and with a `;` in them, are among them.
    What an ask would match only in a deny's way is refused where it would fall to an allow: nobody is passed over by a
    spelling, and nobody's word covers another one.
I3  A verdict names the rule that decided it; the same request gets the same verdict.
I4  Deciding needs the head alone. What the head cannot say (a chunked body's size) comes back as a limit to enforce.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from unicodedata import normalize
from urllib.parse import unquote

from saggar.core.decision import ALLOW, ASK, DENY, STRENGTH, Decision
from saggar.core.errors import ParseError
from saggar.egress.glob import Glob, PathPattern
from saggar.egress.headers import as_variable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any, Literal

    from saggar.core.decision import EffectName

#: Known to every rule. Others (WebDAV, `LIST`) must be named by a rule; TRACE and CONNECT are never methods here.
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
NEVER = frozenset({"TRACE", "TRACK", "CONNECT", "PRI", "DEBUG"})

APPROVE = "approve"
_ORDER = {**STRENGTH, APPROVE: STRENGTH[ASK] + 0.5}
_REASONS = {ALLOW: "rule_allows", APPROVE: "rule_approves", ASK: "rule_asks", DENY: "rule_denies"}

_REMEMBERED = 1024
_METHOD = re.compile(r"[A-Z][A-Z0-9\-]{0,31}")
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~\-]{1,128}")
_REASON = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TYPE = re.compile(r"[a-z0-9!#$&^_.+\-]+/(?:[a-z0-9!#$&^_.+\-]+|\*)")


@dataclass(frozen=True, slots=True)
class Request:
    """The head of a request in canonical form. path: text of `Target.path`; headers: lower-case names, in order.
    body_bytes: 0 where there is none, None where only the end will tell (chunked). whole_query: the pairs of a server that
    splits at `&` alone, where they differ (`query` is split at `;` too)."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    headers: Sequence[tuple[bytes, bytes]] = ()
    body_bytes: int | None = 0
    whole_query: Sequence[tuple[str, str]] = ()

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """All that some server reads in the query."""
        return (*self.query, *self.whole_query)

    def values_of(self, header: bytes) -> list[str]:
        """The values of all fields that some server takes for `header`."""
        wanted = as_variable(header)
        return [v.decode("latin-1") for n, v in self.headers if as_variable(n) == wanted]


@dataclass(frozen=True, slots=True)
class Verdict:
    """decision: who said what. body_limit: bytes of body that may pass, None for no limit of the rules."""

    decision: Decision
    body_limit: int | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """One `[[egress.allow.rules]]`. Empty conditions match everything."""

    id: str
    effect: Literal["allow", "approve", "ask", "deny"]
    methods: frozenset[str] = frozenset()
    paths: tuple[PathPattern, ...] = ()
    query: tuple[tuple[str, Glob], ...] = ()
    headers: tuple[tuple[bytes, Glob], ...] = ()
    content_types: tuple[str, ...] = ()
    max_body_bytes: int | None = None
    reason: str = ""
    verdict: Verdict = field(init=False, repr=False, compare=False)
    #: of an ask, for what some server takes for what it asks about
    shadow: Verdict = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reason = self.reason or _REASONS[self.effect]
        effect: EffectName = ALLOW if self.effect == "approve" else self.effect
        public = "" if effect == ALLOW else f"{effect} by rule `{self.id}`"
        decision = Decision(effect, reason, layer="L2", rule=self.id, public=public)
        object.__setattr__(self, "verdict", Verdict(decision, self.max_body_bytes))
        public = f"some server takes it for what rule `{self.id}` asks about"
        object.__setattr__(
            self, "shadow", Verdict(Decision(DENY, "ask_spelling", layer="L2", rule=self.id, public=public))
        )

    def reaches(self, method: str, path: str, *, wide: bool) -> bool:
        """Whether method and path alone are covered. wide: as a deny does."""
        if self.methods and method not in self.methods:
            return False
        if not self.paths:
            return True
        return any(_wide(p, path) for p in self.paths) if wide else any(p.matches(path) for p in self.paths)

    def fits(self, request: Request) -> bool:
        """Whether the other conditions hold, of a request that the rule reaches."""
        return self._fits_any(request) if self.effect == DENY else self._fits_all(request)

    def shadows(self, request: Request) -> bool:
        """Whether a rule that asks, and reaches the request widely, would match it in a deny's way."""
        small = self.max_body_bytes is None or request.body_bytes is None or request.body_bytes <= self.max_body_bytes
        return small and self._fits_any(replace(request, body_bytes=None))

    def _fits_all(self, request: Request) -> bool:
        for name, glob in self.query:
            pairs = request.pairs()
            if not any(n == name for n, _ in pairs):
                return False
            if not all(glob.matches(v) for n, v in pairs if same_parameter(n, name)):
                return False
        for header, glob in self.headers:
            if not any(n == header for n, _ in request.headers):
                return False
            if not all(map(glob.matches, request.values_of(header))):
                return False
        if self.content_types and request.body_bytes != 0 and not _all_types(request.headers, self.content_types):
            return False
        return self.max_body_bytes is None or request.body_bytes is None or request.body_bytes <= self.max_body_bytes

    def _fits_any(self, request: Request) -> bool:
        for name, glob in self.query:
            wanted = _query_name(name)
            if not any(glob.matches(v) for n, v in request.pairs() if _query_name(n) == wanted):
                return False
        for header, glob in self.headers:
            if not any(map(glob.matches, request.values_of(header))):
                return False
        if self.content_types and not _any_type(request.headers, self.content_types):
            return False
        # a deny with a size is "larger than": unknown sizes count as larger
        return self.max_body_bytes is None or request.body_bytes is None or request.body_bytes > self.max_body_bytes


def _query_name(name: str) -> str:
    """A parameter's name as servers that forgive read it: without case, blanks before it, and what makes it a list or a table."""
    return _plain_name(name).partition("[")[0]


#: PHP's names are those of variables; `[` is one of these signs there where no `]` follows
_AS_VARIABLE = str.maketrans(". ", "__")


def _plain_name(name: str) -> str:
    plain = name.lstrip(" ").casefold().translate(_AS_VARIABLE)
    return plain if "]" in plain else plain.replace("[", "_", 1)


def same_parameter(one: str, other: str) -> bool:
    """Whether some server takes the two for one parameter, or one for a part of the other; other entries of a table are not."""
    if one == other:
        return True
    one, other = _plain_name(one), _plain_name(other)
    return one == other or one.startswith(other + "[") or other.startswith(one + "[")


def _wide(pattern: PathPattern, path: str) -> bool:
    """A deny must also catch what a server without regard to case, to escapes or to a last slash would treat as the same."""
    if pattern.matches(path):
        return True
    folded = _folded(pattern)
    loose = _loose(path).replace("*", _STAR)
    other = loose[:-1] if loose.endswith("/") and len(loose) > 1 else loose + "/"
    return folded.matches(loose) or folded.matches(other)


@lru_cache(maxsize=64)  # each pattern asks for the same path
def _loose(text: str) -> str:
    """Without case, dots and blanks at the end of a segment (Windows), and escapes of visible characters (`%2F` is a separator
    to many), which are as normalisation makes them: not canonical, only to compare with."""
    text = _PRINTED.sub(lambda m: chr(int(m[1], 16)), text)
    if _HIGH.search(text):
        text = normalize("NFKC", _HIGH.sub(lambda m: unquote(m[0], errors="replace"), text))
    text = text.casefold()
    if "./" in text or "%20" in text or text.endswith("."):
        text = "/".join([s if _ANY in s else s.replace("%20", " ").rstrip(". ") for s in text.split("/")])
    return text


_PRINTED = re.compile("%((?:2[1-9A-Fa-f]|[3-6][0-9A-Fa-f]|7[0-9A-Ea-e]))")
_HIGH = re.compile("(?:%[89A-F][0-9A-F])+")
#: a star that is one, and no pattern's; a pattern's: no path holds a control byte
_STAR, _ANY = "\0", "\1"
_FOLDED: dict[str, PathPattern] = {}


def _folded(pattern: PathPattern) -> PathPattern:
    """`pattern`, loosened as paths are."""
    found = _FOLDED.get(pattern.text)
    if found is None:
        # an escaped separator splits a segment of the pattern too
        loose = _loose(pattern.text.replace("*", _ANY).replace("%2A", "*"))
        found = PathPattern.loose(loose.replace("*", _STAR).replace(_ANY, "*"))
        if len(_FOLDED) < 4096:
            _FOLDED[pattern.text] = found
    return found


def _media_type(value: bytes) -> str:
    return value.partition(b";")[0].strip().decode("latin-1").lower()


def _type_in(kind: str, wanted: tuple[str, ...]) -> bool:
    return kind in wanted or f"{kind.partition('/')[0]}/*" in wanted


def _all_types(headers: Sequence[tuple[bytes, bytes]], wanted: tuple[str, ...]) -> bool:
    kinds = [_media_type(v) for n, v in headers if n == b"content-type"]
    return len(kinds) == 1 and _type_in(kinds[0], wanted)


def _any_type(headers: Sequence[tuple[bytes, bytes]], wanted: tuple[str, ...]) -> bool:
    kinds = [_media_type(v) for n, v in headers if n == b"content-type"]
    # a server may guess where nothing, more than one thing, or nothing well-formed is said
    return len(kinds) != 1 or not _TYPE.fullmatch(kinds[0]) or _type_in(kinds[0], wanted)


def _none(reason: str, public: str) -> Verdict:
    return Verdict(Decision(DENY, reason, layer="L2", public=public))


_NO_RULE = _none("no_rule_matches", "no rule of this host allows the request")
_NO_METHOD = _none("method_not_allowed", "no rule of this host allows the method")
_BAD_METHOD = _none("method_unknown", "the method is unknown here")


@dataclass(frozen=True, slots=True)
class HttpRules:
    """The rules of one host, strongest effect first so that the first match decides (I1)."""

    rules: tuple[Rule, ...]
    extra_methods: frozenset[str] = frozenset()
    #: (method, path) to the rules that reach it, and whether as they are written: clients ask for few paths, often
    reaching: dict[tuple[str, str], tuple[tuple[Rule, bool], ...]] = field(
        default_factory=dict, repr=False, compare=False
    )

    @classmethod
    def of(cls, rules: Iterable[Rule]) -> HttpRules:
        ordered = tuple(sorted(rules, key=lambda r: -_ORDER[r.effect]))
        named = frozenset(m for r in ordered if r.effect != DENY for m in r.methods)
        return cls(ordered, named - METHODS)

    @property
    def header_names(self) -> frozenset[bytes]:
        """The header fields that any rule looks at, `content-type` among them."""
        return frozenset(n for r in self.rules for n, _ in r.headers) | {b"content-type"}

    def decide(self, request: Request) -> Verdict:
        method = request.method
        if method not in METHODS and (method in NEVER or method not in self.extra_methods):
            return _BAD_METHOD
        key = (method, request.path)
        reaching = self.reaching.get(key)
        if reaching is None:
            reaching = tuple(self._reaching(*key))
            if len(self.reaching) >= _REMEMBERED:
                self.reaching.clear()
            self.reaching[key] = reaching
        shadow: Verdict | None = None
        for rule, exact in reaching:
            if exact and rule.fits(request):
                return shadow if shadow is not None and rule.effect == ALLOW else rule.verdict
            if rule.effect == ASK and shadow is None and rule.shadows(request):
                shadow = rule.shadow
        if not any(not r.methods or method in r.methods for r in self.rules if r.effect != DENY):
            return _NO_METHOD
        return _NO_RULE

    def _reaching(self, method: str, path: str) -> Iterator[tuple[Rule, bool]]:
        for rule in self.rules:
            if rule.effect == DENY:
                if rule.reaches(method, path, wide=True):
                    yield rule, True
            elif rule.reaches(method, path, wide=False):
                yield rule, True
            elif rule.effect == ASK and rule.reaches(method, path, wide=True):
                yield rule, False


#: A host without rules of its own: every known method and path.
OPEN = HttpRules.of([Rule("host", ALLOW)])

_KEYS = {"id", "effect", "methods", "paths", "query", "headers", "content_types", "max_body", "reason"}


def parse_rule(data: dict[str, Any], default_id: str) -> Rule:
    """One rule from its JSON shape. Raises ParseError (`bad_rule`, `bad_pattern`) with the key that is wrong."""
    unknown = sorted(set(data) - _KEYS)
    if unknown:
        raise ParseError(f"unknown key `{unknown[0]}` in a rule", reason="bad_rule")
    effect = data.get("effect", ALLOW)
    if effect not in _ORDER:
        raise ParseError(f"effect `{effect}` is not `allow`, `approve`, `ask` or `deny`", reason="bad_rule")
    methods = frozenset(_texts(data, "methods"))
    for method in sorted(methods):
        if not _METHOD.fullmatch(method) or method in NEVER:
            raise ParseError(f"method `{method}` cannot be allowed", reason="bad_rule")
    kinds = tuple(_texts(data, "content_types"))
    for kind in kinds:
        if not _TYPE.fullmatch(kind):
            raise ParseError(f"content type `{kind}` is not `type/subtype` in lower case", reason="bad_rule")
    size = data.get("max_body")
    if size is not None and (not isinstance(size, int) or isinstance(size, bool) or size < 0):
        raise ParseError("`max_body` is not a number of bytes", reason="bad_rule")
    name, reason = str(data.get("id") or default_id), str(data.get("reason", ""))
    if not name.isprintable() or len(name) > 128:
        raise ParseError(f"id `{name[:40]!r}` is not one line of at most 128 characters", reason="bad_rule")
    # it is told in a header field
    if reason and not _REASON.fullmatch(reason):
        raise ParseError(f"reason `{reason[:40]!r}` is not of lower-case letters, digits and `_`", reason="bad_rule")
    return Rule(
        id=name,
        effect=effect,
        methods=methods,
        paths=tuple(PathPattern.parse(p) for p in _texts(data, "paths")),
        query=tuple((n, Glob.parse(v)) for n, v in _pairs(data, "query")),
        headers=tuple((n.encode(), Glob.parse(v)) for n, v in _pairs(data, "headers") if _header_name(n)),
        content_types=kinds,
        max_body_bytes=size,
        reason=reason,
    )


def _texts(data: dict[str, Any], key: str) -> list[str]:
    value = data.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value) or (key in data and not value):
        raise ParseError(f"`{key}` is not a list of strings with at least one", reason="bad_rule")
    return value


def _pairs(data: dict[str, Any], key: str) -> list[tuple[str, str]]:
    value = data.get(key, {})
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ParseError(f"`{key}` is not a table of name and pattern", reason="bad_rule")
    return list(value.items())


def _header_name(name: str) -> bool:
    if not _NAME.fullmatch(name):
        raise ParseError(f"header name `{name[:40]}` is not a lower-case token", reason="bad_rule")
    return True
