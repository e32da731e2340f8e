"""One request of a terminated host: judged from its head, and the head that goes upstream.

I1  Policy, dial and injection take the same `Destination`; a request that names another host is `name_mismatch` (421).
I2  What was judged is what is sent: canonical target, fields filtered by `headers.classify`, written anew.
I3  A secret is given a place only by `inject`, after everything else was said; where the declared slot holds anything
    but our placeholder the request is refused (or that value stripped) before.
I4  A placeholder anywhere but in its slot on its host is refused with an alert.

Pure: head and terms in, verdict or refusal out.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from saggar.core.decision import ALLOW, ASK, DENY, Decision
from saggar.core.errors import ParseError
from saggar.egress import sigv4
from saggar.egress.headers import DROP, PASS, SUSPECT, as_variable, classify, credential_in_query, looks_like_key
from saggar.egress.path import Target, canonical
from saggar.egress.remedies import remedy
from saggar.egress.rules import NEVER, Request, same_parameter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from saggar.egress.destination import Destination
    from saggar.egress.http_head import Body, RequestHead
    from saggar.egress.placeholder import Canary
    from saggar.egress.rules import Verdict
    from saggar.egress.terms import Credential, Terms

Pair = tuple[bytes, bytes]

#: characters of a path that a record and a refusal show
_LOGGED = 512

#: reason -> status, where it is not 403
STATUS = {
    "method_unknown": 405,
    "method_not_allowed": 405,
    "method_refused": 405,
    "name_mismatch": 421,
    "target_too_long": 414,
    "h2_refused": 400,
    "body_too_large": 413,
    "credential_unavailable": 503,
    "sigv4_needs_body": 411,
    "body_unreadable": 415,
    "approval_timeout": 403,
}
_BAD_REQUEST = ("path_", "query_", "malformed", "bad_framing", "bad_host_name", "bad_port")


def status_of(reason: str) -> int:
    """HTTP status of a refusal: the same reason has the same status everywhere."""
    found = STATUS.get(reason)
    if found is not None:
        return found
    return 400 if reason.startswith(_BAD_REQUEST) else 403


@dataclass(frozen=True, slots=True)
class Refused:
    """decision: deny, with what may be shown and what is logged. alert: somebody tried to misuse a credential."""

    decision: Decision
    status: int
    alert: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request that may be sent (or asked about: `decision.effect`). fields: to forward, without the credential's.
    stated_hash: the client's `x-amz-content-sha256`. issued: the placeholder
    of a token that an endpoint issued, which stood in the slot. takes_trailers: the client said `TE: trailers`. narrow: of a
    host whose answers are searched, the bytes of the smallest part that is asked for, 0 without `Range`."""

    method: str
    target: Target
    fields: tuple[Pair, ...]
    decision: Decision
    body_limit: int | None
    websocket: bool = False
    stripped: tuple[str, ...] = ()
    stated_hash: bytes | None = None
    issued: str = ""
    takes_trailers: bool = False
    narrow: int = 0


def refuse(
    reason: str,
    destination: Destination,
    public: str,
    *,
    rule: str = "",
    alert: bool = False,
    detail: dict[str, Any] | None = None,
) -> Refused:
    """public: what is wrong, without the destination; the remedy is added. rule: the one that denies, under a reason of its
    own, which may be called as one of ours is. detail: for the audit log alone."""
    known = "rule_denies" if rule else reason
    text = f"{destination}: {public}; {remedy(known, destination)}"
    facts = {"host": destination.host, "port": destination.port, "scheme": destination.scheme, **(detail or {})}
    decision = Decision(DENY, reason, layer="L2", rule=rule, public=text, detail=facts)
    return Refused(decision, status_of(known), alert)


def admit(
    head: RequestHead,
    destination: Destination,
    terms: Terms,
    canary: Canary | None,
    issued: Mapping[str, tuple[str, str]] = MappingProxyType({}),
) -> Admitted | Refused:
    """Judge one head. Never raises for what a client sent. issued: placeholder to (token, id of the rule that issued it)."""
    if head.host != destination.host or head.port != destination.port:
        return refuse("name_mismatch", destination, "the request names another host than the connection is for")
    if head.method in NEVER:
        return refuse("method_unknown", destination, "the method is never served", detail={"method": head.method})
    try:
        target = canonical(head.target, keep_slash=terms.keep_slash)
    except ParseError as e:
        return refuse(e.reason, destination, str(e), detail={"method": head.method})
    if head.upgrade and head.upgrade != b"websocket":
        return refuse("h2_refused", destination, "only HTTP/1.1 and WebSocket are served")
    if head.upgrade and not terms.websocket:
        return refuse("upgrade_refused", destination, "WebSocket is not allowed for this host")
    lower = [(n.lower(), v) for n, v in head.fields]
    verdict = _verdict(head, target, lower, terms)
    decision = verdict.decision
    path = target.path[:_LOGGED].decode("ascii")
    facts: dict[str, Any] = {"method": head.method, "path": path}
    if decision.effect == DENY:
        text = f"{head.method} {path}: {decision.public}"
        return refuse(decision.reason, destination, text, rule=decision.rule, detail=facts)
    found = _carried(target, lower, terms, canary, issued)
    if isinstance(found, _Bad):
        where = {"field": found.where} if found.where else {}
        return refuse(found.reason, destination, found.public, alert=found.alert, detail={**where, **facts})
    facts |= {"host": destination.host, "port": destination.port, "scheme": destination.scheme}
    if found.stripped:
        facts["stripped"] = sorted(found.stripped)
    if terms.credential is not None:
        facts["credential"] = terms.credential.id
    effect = ASK if decision.effect == ASK else ALLOW
    return Admitted(
        head.method,
        found.target,
        tuple(found.fields),
        Decision(effect, decision.reason, layer="L2", rule=decision.rule, detail=facts),
        verdict.body_limit,
        bool(head.upgrade),
        tuple(found.stripped),
        found.stated_hash,
        found.issued,
        (b"te", b"trailers") in lower,
        found.narrow,
    )


def _verdict(head: RequestHead, target: Target, lower: Sequence[Pair], terms: Terms) -> Verdict:
    body = head.body
    size = body.length if body.kind == "length" else 0 if body.kind == "none" else None
    pairs = target.pairs if target.query else ()
    return terms.rules.decide(Request(head.method, target.path.decode("ascii"), pairs, lower, size, target.whole_pairs))


def _carried(
    target: Target,
    lower: list[Pair],
    terms: Terms,
    canary: Canary | None,
    issued: Mapping[str, tuple[str, str]],
) -> _Bad | _Sifted:
    """What of an allowed request goes on, and whether the credentials that it carries are this task's and in their place."""
    credential = terms.credential
    given = _issued(lower, terms, issued)
    if given:
        lower = [(n, v) for n, v in lower if n != b"authorization"]
    found = _sift(target, lower, terms, canary)
    if isinstance(found, _Bad):
        return found
    found.issued = given
    bad = _sift_query(found, terms, canary)
    if bad is not None:
        return bad
    if canary is not None and _leaks(canary, found.target, found.fields):
        return _Bad("canary", "", "a placeholder stands where it does not belong")
    if credential is not None and credential.require and not found.seen:
        return _Bad("placeholder_missing", "", "the request does not carry this task's placeholder", alert=False)
    return found


def _issued(lower: Sequence[Pair], terms: Terms, issued: Mapping[str, tuple[str, str]]) -> str:
    """The placeholder of an issued token that stands as the one bearer of the request, "" where none does."""
    if not terms.tokens_from:
        return ""
    values = [v for n, v in lower if n == b"authorization"]
    if len(values) != 1 or values[0][:7].lower() != b"bearer ":
        return ""
    placeholder = values[0][7:].strip().decode("latin-1")
    found = issued.get(placeholder)
    return placeholder if found is not None and found[1] == terms.tokens_from else ""


@dataclass(frozen=True, slots=True)
class _Bad:
    reason: str
    where: str
    public: str
    alert: bool = True


@dataclass(slots=True)
class _Sifted:
    """What is sent on. seen: our placeholder stood in its slot. narrow: see `Admitted`."""

    target: Target
    fields: list[Pair]
    stripped: list[str]
    seen: bool = False
    stated_hash: bytes | None = None
    issued: str = ""
    narrow: int = 0


_WS_DROP = frozenset({b"sec-websocket-extensions"})
#: forced to identity where answers are scanned
_CODING = b"accept-encoding"


#: parts of something that is there; Azure's has a name of its own
RANGES = frozenset({b"range", b"x-ms-range"})
_WINDOW = re.compile(rb"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))")


def narrowest(value: bytes) -> int:
    """Bytes that a `Range` asks for, at least: 1 where it asks for several parts, or in a form that is not known."""
    match = _WINDOW.fullmatch(value.replace(b" ", b"").lower())
    if match is None:
        return 1
    first, last, suffix = match.groups()
    if suffix is not None:
        return max(1, int(suffix))
    return max(1, int(last) - int(first) + 1) if last else 1 << 62


def _sift(target: Target, lower: Sequence[Pair], terms: Terms, canary: Canary | None) -> _Bad | _Sifted:
    """The fields to forward: those of the hop, foreign credentials and our own slot taken out."""
    credential = terms.credential
    found = _Sifted(target, [], [])
    slot = (
        as_variable(credential.slot.name.encode())
        if credential is not None and credential.slot.kind != "query"
        else b""
    )
    ours = {as_variable(n) for n, _ in terms.set_headers}
    unencoded = credential is not None or terms.token_endpoint
    for name, value in lower:
        twin = as_variable(name)
        if credential is not None and twin == slot:
            bad = _judge_slot(credential, value, canary)
            if bad is None:
                found.seen = True
            elif terms.foreign == "strip" and bad.reason == "foreign_credential":
                found.stripped.append(name.decode())
            else:
                return bad
            continue
        kind = classify(name)
        if kind == DROP or name in _WS_DROP or twin in ours:
            continue
        if kind == PASS and not looks_like_key(value.decode("latin-1")):
            if name == _CODING and unencoded:
                continue
            if name == b"x-amz-content-sha256":
                found.stated_hash = value
            elif name in RANGES and unencoded:
                found.narrow = min(found.narrow or 1 << 62, narrowest(value))
            found.fields.append((name, value))
            continue
        if canary is not None and canary.seen(value):
            return _Bad("canary", name.decode(), "a placeholder stands where it does not belong")
        # what only sounds like a credential is taken off, and no more
        certain = kind != SUSPECT or looks_like_key(value.decode("latin-1"))
        if credential is not None and terms.foreign == "refuse" and certain:
            public = f"a credential that is not this task's stands in `{name.decode()}`"
            return _Bad("foreign_credential", name.decode(), public)
        found.stripped.append(name.decode())
    if unencoded:
        found.fields.append((_CODING, b"identity"))
    found.fields.extend(terms.set_headers)
    return found


def _is_placeholder(credential: Credential, value: bytes) -> bool:
    placeholder = credential.placeholder.encode()
    if not placeholder:
        return False
    kind = credential.slot.kind
    if kind == "bearer":
        return value[:7].lower() == b"bearer " and value[7:].strip() == placeholder
    if kind == "header":
        scheme = credential.slot.scheme.encode()
        return value == placeholder or (bool(scheme) and value == scheme + placeholder)
    if kind == "sigv4":
        return value.startswith(b"AWS4-HMAC-SHA256 Credential=" + placeholder + b"/")
    # git and basic: the placeholder as password or as user, or as a token
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() in (b"bearer", b"token"):
        return kind == "git" and rest.strip() == placeholder
    if scheme.lower() != b"basic":
        return False
    try:
        user, _, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
    except (binascii.Error, ValueError):
        return False
    return password == placeholder or (user == placeholder and password in (b"", b"x-oauth-basic", b"x"))


def _judge_slot(credential: Credential, value: bytes, canary: Canary | None) -> _Bad | None:
    """None where our placeholder stands in its slot; else why not."""
    name = credential.slot.name
    if _is_placeholder(credential, value):
        reason = check_scope(credential, value) if credential.kind == "sigv4" else ""
        return _Bad(reason, name, "the signature's scope is not the pinned one") if reason else None
    if canary is not None and canary.seen(value):
        return _Bad("canary", name, "a placeholder stands where it does not belong")
    return _Bad("foreign_credential", name, f"a credential that is not this task's stands in `{name}`")


def check_scope(credential: Credential, value: bytes) -> str:
    """For SigV4: "" where the client's scope is the pinned one, else the reason."""
    try:
        claim = sigv4.parse_claim(value)
    except ParseError as e:
        return e.reason
    return "" if (claim.region, claim.service) == (credential.region, credential.service) else "sigv4_scope"


def _sift_query(found: _Sifted, terms: Terms, canary: Canary | None) -> _Bad | None:
    """Refuse or strip credentials in the query; take our own placeholder out."""
    target, credential = found.target, terms.credential
    pairs = target.pairs if target.query else ()
    if not pairs:
        return None
    slot = credential.slot.name if credential is not None and credential.slot.kind == "query" else ""
    own = credential.placeholder if credential is not None else ""
    others = [f"{n}={v}" for n, v in pairs if not (slot and n == slot and v == own)]
    if canary is not None and canary.seen("&".join(others).encode("utf-8", "surrogateescape")):
        return _Bad("canary", "query", "a placeholder stands where it does not belong")
    seen = False
    if slot and credential is not None:
        values = [v for n, v in pairs if same_parameter(n, slot)]
        seen = values == [credential.placeholder]
        if values and not seen:
            return _Bad("foreign_credential", slot, f"a credential that is not this task's stands in `{slot}`")
    foreign = credential_in_query(pairs, ours=slot)
    if foreign and credential is not None and terms.foreign == "refuse":
        return _Bad("foreign_credential", "query", "a credential that is not this task's stands in the query")
    if foreign or seen:
        kept = [(n, v) for n, v in pairs if n != slot and not credential_in_query([(n, v)])]
        found.stripped.extend(n for n, v in pairs if n != slot and credential_in_query([(n, v)]))
        found.target = with_query(target, kept)
    found.seen = found.seen or seen
    return None


def with_query(target: Target, pairs: Sequence[tuple[str, str]]) -> Target:
    """The target with another query, written in canonical form."""
    if not pairs:
        return Target(target.path, None, target.path)
    text = "&".join(f"{_quote(n)}={_quote(v)}" for n, v in pairs).encode()
    return Target(target.path, text, target.path + b"?" + text)


def _quote(text: str) -> str:
    return quote(text.encode("utf-8", "surrogateescape"), safe="-._~")


def _leaks(canary: Canary, target: Target, fields: Sequence[Pair]) -> bool:
    return canary.seen(b"\n".join([target.raw, *[v for _, v in fields], *[n for n, _ in fields]]))


@dataclass(frozen=True, slots=True)
class Lease:
    """A secret as the secrets process gave it, for one credential. ends: monotonic seconds. values: by role."""

    credential: str
    version: int
    ends: float
    values: dict[str, str]

    def __repr__(self) -> str:
        return f"Lease({self.credential!r}, {self.version})"


def inject(
    admitted: Admitted,
    credential: Credential,
    lease: Lease,
    *,
    authority: str,
    now: str = "",
    body: bytes | None = None,
) -> tuple[bytes, list[Pair]]:
    """(target, fields) with the secret in its slot, exactly once. Raises ParseError for a body that cannot be signed.

    now: `YYYYMMDDThhmmssZ`, for SigV4. body: the whole body where it was read.
    """
    fields = list(admitted.fields)
    kind = credential.kind
    if kind == "sigv4":
        return admitted.target.raw, _sign(admitted, credential, lease, authority=authority, now=now, body=body)
    value = lease.values["value"]
    if kind == "query":
        pairs = [*admitted.target.pairs, (credential.slot.name, value)]
        return with_query(admitted.target, pairs).raw, fields
    if kind in ("basic", "git"):
        # without a user the secret itself is `user:password`
        pair = f"{credential.user}:{value}" if credential.user else value
        fields.append((b"authorization", b"Basic " + base64.b64encode(pair.encode())))
    elif kind == "header":
        fields.append((credential.slot.name.encode(), (credential.slot.scheme + value).encode()))
    else:
        fields.append((b"authorization", b"Bearer " + value.encode()))
    return admitted.target.raw, fields


def write_request(
    admitted: Admitted,
    body: Body,
    authority: str,
    *,
    target: bytes,
    fields: Iterable[Pair],
    whole: bytes | None = None,
    promised: bytes = b"",
    expects: bool = False,
) -> bytes:
    """The head to send upstream. body: the client's framing, kept; whole: a body that was read and goes along. promised: names
    of trailers behind a chunked body. expects: the body waits for the upstream's word."""
    lines = [b"%s %s HTTP/1.1\r\nHost: %s\r\n" % (admitted.method.encode(), target, authority.encode())]
    lines += [b"%s: %s\r\n" % f for f in fields]
    if whole is not None:
        lines.append(b"Content-Length: %d\r\n" % len(whole))
    elif body.kind == "chunked":
        lines.append(b"Transfer-Encoding: chunked\r\n")
        if promised:
            lines.append(b"Trailer: %s\r\n" % promised)
    elif body.kind == "length":
        lines.append(b"Content-Length: %d\r\n" % body.length)
    if admitted.websocket:
        lines.append(b"Connection: Upgrade\r\nUpgrade: websocket\r\n")
    elif admitted.takes_trailers:
        lines.append(b"Connection: TE\r\nTE: trailers\r\n")
    if expects:
        lines.append(b"Expect: 100-continue\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _sign(
    admitted: Admitted, credential: Credential, lease: Lease, *, authority: str, now: str, body: bytes | None
) -> list[Pair]:
    scope = sigv4.Scope(credential.region, credential.service)
    date = lease.values["date"]
    if now[:8] != date:
        # the day ended while a body was read: the key is for the day before, and services take a few minutes' difference
        now = f"{date}T235959Z"
    return sigv4.sign(
        method=admitted.method,
        host=authority,
        path=admitted.target.path.decode(),
        query=admitted.target.pairs,
        headers=admitted.fields,
        body_hash=sigv4.payload_hash(admitted.stated_hash, credential.service, body),
        key_id=lease.values["key_id"],
        signing_key=bytes.fromhex(lease.values["signing_key"]),
        scope=scope,
        now=now,
        session_token=lease.values.get("session_token", ""),
    )
