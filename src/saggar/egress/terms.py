"""The terms of one terminated host, and how an entry of the policy becomes them.

I1  What a policy says about HTTP, credential and budget is understood whole or refused at load; unknown keys are refused.
I2  The broker's half (`Terms`) names no source of a secret; the secrets process's half (`SecretSpec`) names no rule.
I3  A host with a credential is terminated: a tunnelled host cannot have one.

The JSON shapes are those of `[[egress.allow]]` beside `host` and `ports`.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from saggar.core.decision import ALLOW, ASK
from saggar.core.errors import ParseError, UsageError
from saggar.egress.budget import Limits
from saggar.egress.headers import DROP, classify
from saggar.egress.placeholder import Slot, mint
from saggar.egress.profiles import expand
from saggar.egress.rules import OPEN, HttpRules, Rule, parse_rule

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from saggar.policy.model import EgressPolicy, EgressRule

KINDS = ("bearer", "basic", "header", "query", "git", "sigv4", "oauth2")
#: of hosts that take tokens which a token endpoint issued to this cell (`tokens_from`); it has no source
ISSUED = "issued"
#: keys of `[[egress.allow]]` that make a host terminated
KEYS = frozenset(
    {
        "profile",
        "credential",
        "rules",
        "methods",
        "websocket",
        "budget",
        "ca",
        "encoded_slash",
        "foreign",
        "foreign_keys",
        "set_headers",
        "token_endpoint",
        "tokens_from",
    }
)
_CREDENTIAL_KEYS = frozenset(
    {"source", "kind", "name", "scheme", "user", "env", "format", "require", "region", "service", "key_id", "session_token",
     "token_url", "client_id", "refresh_source", "scope", "audience", "in_body"}
)  # fmt: skip
_SOURCES = ("env", "file", "keyring", "command", "vault")


@dataclass(frozen=True, slots=True)
class Source:
    """Where a secret is read. kind: one of `env`, `file`, `keyring`, `command`, `vault`; argument: the rest of the text."""

    kind: str
    argument: str

    @classmethod
    def parse(cls, text: object) -> Source:
        """`env:NAME`, `file:/absolute`, `keyring:service/user`, `command:argv`, `vault:mount/data/path#field`."""
        if not isinstance(text, str):
            raise ParseError(
                "a credential's source is a string such as `env:NAME` or `file:/path`", reason="bad_source"
            )
        kind, colon, argument = text.partition(":")
        if not colon or kind not in _SOURCES or not argument:
            raise ParseError(f"source kind `{kind[:20]}` is not one of {', '.join(_SOURCES)}", reason="bad_source")
        if kind == "env" and not argument.replace("_", "a").isalnum():
            raise ParseError("`env:` takes the name of a variable", reason="bad_source")
        if kind == "file" and not argument.startswith("/"):
            raise ParseError("`file:` takes an absolute path", reason="bad_source")
        if kind == "keyring" and "/" not in argument:
            raise ParseError("`keyring:` takes `service/user`", reason="bad_source")
        if kind == "vault" and "#" not in argument:
            raise ParseError("`vault:` takes `path#field`", reason="bad_source")
        if kind == "command":
            try:
                argv = shlex.split(argument)
            except ValueError as e:
                raise ParseError("`command:` takes a command line", reason="bad_source") from e
            if not argv or not argv[0].startswith("/"):
                raise ParseError("`command:` begins with an absolute path", reason="bad_source")
        return cls(kind, argument)

    def __str__(self) -> str:
        return f"{self.kind}:{self.argument}"


@dataclass(frozen=True, slots=True)
class SecretSpec:
    """What the secrets process holds for one host pattern. sources: role (`value`, `key_id`, `session_token`,
    `client_secret`, `refresh_token`) to source text."""

    credential: str
    host: str
    kind: str
    sources: dict[str, str]
    facts: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "credential": self.credential,
            "host": self.host,
            "kind": self.kind,
            "sources": self.sources,
            "facts": self.facts,
        }


@dataclass(frozen=True, slots=True)
class Credential:
    """The broker's view of a credential. id: asked for by this. placeholder: what the cell holds, "" where none was made."""

    id: str
    kind: str
    slot: Slot
    placeholder: str = ""
    require: bool = True
    user: str = ""
    region: str = ""
    service: str = ""


@dataclass(frozen=True, slots=True)
class Terms:
    """How requests to one terminated host are judged and sent."""

    rules: HttpRules = OPEN
    credential: Credential | None = None
    websocket: bool = False
    limits: Limits = field(default_factory=Limits)
    keep_slash: bool = False
    foreign: str = "refuse"
    #: known keys in a body are looked for
    foreign_keys: bool = False
    set_headers: tuple[tuple[bytes, bytes], ...] = ()
    ca_pem: str = ""
    token_endpoint: bool = False
    tokens_from: str = ""

    @classmethod
    def parse(cls, data: Mapping[str, Any], rule_id: str) -> Terms:
        """From `Compiled.terms`. Raises ParseError."""
        rules = [parse_rule(r, f"{rule_id}.rules[{i}]") for i, r in enumerate(data.get("rules") or [])]
        ids = [r.id for r in rules]
        for rule in rules:
            # an approval for the task is one for the rule that asked, by its id
            if rule.effect == ASK and ids.count(rule.id) > 1:
                raise ParseError(f"two rules are called `{rule.id[:40]}`, and one of them asks", reason="bad_rule")
        return cls(
            # without rules of its own: every known method and path, under the entry's own name
            rules=HttpRules.of(rules or [Rule(rule_id, ALLOW)]),
            credential=_credential(data["credential"]) if data.get("credential") else None,
            websocket=bool(data.get("websocket", False)),
            limits=Limits.parse(data.get("budget") or {}),
            keep_slash=bool(data.get("encoded_slash", False)),
            foreign=str(data.get("foreign", "refuse")),
            foreign_keys=data.get("foreign_keys", "pass") == "refuse",
            set_headers=tuple((str(n).encode(), str(v).encode()) for n, v in data.get("set_headers") or []),
            ca_pem=str(data.get("ca_pem", "")),
            token_endpoint=bool(data.get("token_endpoint", False)),
            tokens_from=str(data.get("tokens_from", "")),
        )


def _credential(data: Mapping[str, Any]) -> Credential:
    slot = data["slot"]
    return Credential(
        id=data["id"],
        kind=data["kind"],
        slot=Slot(slot["kind"], slot["name"], slot.get("scheme", "")),
        placeholder=data.get("placeholder", ""),
        require=data.get("require", True),
        user=data.get("user", ""),
        region=data.get("region", ""),
        service=data.get("service", ""),
    )


@dataclass(frozen=True, slots=True)
class Compiled:
    """terms: JSON for the broker. secret: for the secrets process. environment: variables of the cell (placeholders only).
    placeholders: all that were made, for the canary."""

    terms: dict[str, Any]
    secret: SecretSpec | None
    environment: dict[str, str]
    placeholders: tuple[str, ...]


def is_terminated(entry: Mapping[str, Any]) -> bool:
    """Whether a policy entry asks for anything that only a terminated host can have."""
    return any(k in entry for k in KEYS)


def compile_entry(
    entry: Mapping[str, Any], *, host: str, rule_id: str, random: Callable[[int], bytes], ca_pem: str = ""
) -> Compiled:
    """Turn the HTTP part of one `[[egress.allow]]` into the two halves. random: a secure source.

    Raises ParseError with the offending key: `bad_terms`, `bad_rule`, `bad_pattern`, `bad_budget`, `bad_profile`,
    `bad_source`, `bad_format`.
    """
    unknown = sorted(set(entry) - KEYS)
    if unknown:
        raise ParseError(f"unknown key `{unknown[0]}`", reason="bad_terms")
    rules = list(_table_list(entry, "rules"))
    credential = entry.get("credential")
    set_headers = [[n.lower(), v] for n, v in (entry.get("set_headers") or {}).items()]
    foreign_keys = entry.get("foreign_keys", "pass")
    if entry.get("profile") is not None:
        name, values = _profile(entry["profile"])
        profile = expand(name, values, host)
        rules = [*profile.rules, *rules]
        foreign_keys = entry.get("foreign_keys", profile.foreign_keys)
        set_headers += [[n, v] for n, v in profile.set_headers]
        if credential is not None:
            credential = {**profile.credential, **credential}
    if "methods" in entry:
        rules.append({"id": f"{rule_id}.methods", "methods": entry["methods"]})
    _check_words(entry, set_headers, bound=credential is not None)
    terms: dict[str, Any] = {
        "rules": rules,
        "websocket": entry.get("websocket", False),
        "encoded_slash": entry.get("encoded_slash", False),
        "token_endpoint": entry.get("token_endpoint", False),
        "tokens_from": entry.get("tokens_from", ""),
        "foreign": entry.get("foreign", "refuse"),
        "foreign_keys": foreign_keys,
        "budget": dict(entry.get("budget") or {}),
        "set_headers": set_headers,
        "ca_pem": ca_pem,
        "credential": None,
    }
    secret: SecretSpec | None = None
    environment: dict[str, str] = {}
    placeholders: tuple[str, ...] = ()
    if credential is not None:
        shape, secret, environment, placeholders = _compile_credential(
            credential, host=host, rule_id=rule_id, random=random
        )
        terms["credential"] = shape
    elif entry.get("tokens_from"):
        slot = {"kind": "bearer", "name": "authorization"}
        terms["credential"] = {"id": rule_id, "kind": ISSUED, "slot": slot, "require": False}
    Terms.parse(terms, rule_id)
    return Compiled(terms, secret, environment, placeholders)


def _check_words(entry: Mapping[str, Any], set_headers: Sequence[Sequence[str]], *, bound: bool) -> None:
    """What is said by a word, a yes or no, or a field. bound: there is a credential."""
    for name, value in set_headers:
        if classify(name.encode()) == DROP or not value.isprintable() or not value.isascii():
            raise ParseError(f"`set_headers` cannot set `{name[:40]}`", reason="bad_terms")
    if entry.get("foreign", "refuse") not in ("refuse", "strip"):
        raise ParseError("`foreign` is `refuse` or `strip`", reason="bad_terms")
    if entry.get("foreign_keys", "pass") not in ("refuse", "pass"):
        raise ParseError("`foreign_keys` is `refuse` or `pass`", reason="bad_terms")
    if entry.get("foreign_keys") == "refuse" and not bound:
        raise ParseError("`foreign_keys` is for hosts with a credential", reason="bad_terms")
    for flag in ("websocket", "encoded_slash", "token_endpoint"):
        if not isinstance(entry.get(flag, False), bool):
            raise ParseError(f"`{flag}` is true or false", reason="bad_terms")
    if entry.get("tokens_from") and bound:
        raise ParseError("a host has a `credential` or takes `tokens_from` an endpoint, not both", reason="bad_terms")


def _table_list(entry: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    value = entry.get(key, [])
    if not isinstance(value, list) or not all(isinstance(v, dict) for v in value):
        raise ParseError(f"`{key}` is not a list of tables", reason="bad_terms")
    return value


def _profile(value: object) -> tuple[str, dict[str, str]]:
    if isinstance(value, str):
        return value, {}
    if isinstance(value, dict) and all(isinstance(v, str) for v in value.values()) and "name" in value:
        return value["name"], {k: v for k, v in value.items() if k != "name"}
    raise ParseError("`profile` is a name, or a table with `name` and its parameters", reason="bad_profile")


def _text(data: Mapping[str, Any], key: str, default: str = "") -> str:
    value = data.get(key, default)
    if not isinstance(value, str) or not value.isprintable() or not value.isascii():
        raise ParseError(f"`{key}` of a credential is not printable text", reason="bad_terms")
    return value


def _slot(kind: str, data: Mapping[str, Any]) -> Slot:
    if kind == "header":
        name = _text(data, "name", "x-api-key").lower()
        if classify(name.encode()) == DROP:
            raise ParseError(f"`{name}` cannot carry a credential", reason="bad_terms")
        return Slot("header", name, _text(data, "scheme"))
    if kind == "query":
        return Slot("query", _text(data, "name", "key"))
    if kind == "basic":
        return Slot("basic", "authorization")
    if kind in ("git", "sigv4"):
        return Slot(kind, "authorization")
    return Slot("bearer", "authorization", "Bearer ")


def _compile_credential(
    data: Mapping[str, Any], *, host: str, rule_id: str, random: Callable[[int], bytes]
) -> tuple[dict[str, Any], SecretSpec, dict[str, str], tuple[str, ...]]:
    unknown = sorted(set(data) - _CREDENTIAL_KEYS)
    if unknown:
        raise ParseError(f"unknown key `{unknown[0]}` in a credential", reason="bad_terms")
    kind = _text(data, "kind", "bearer")
    if kind not in KINDS:
        raise ParseError(f"credential kind `{kind[:20]}` is not one of {', '.join(KINDS)}", reason="bad_terms")
    slot = _slot(kind, data)
    env = _text(data, "env")
    form = _text(data, "format", "aws" if kind == "sigv4" else "generic")
    placeholder = mint(form, random)
    placeholders = [placeholder]
    environment = {env: placeholder} if env else {}
    if kind == "sigv4":
        secret_placeholder = mint("aws-secret", random)
        placeholders.append(secret_placeholder)
        if env:
            environment["AWS_SECRET_ACCESS_KEY"] = secret_placeholder
    require = data.get("require", bool(env) and kind != "git")
    if not isinstance(require, bool):
        raise ParseError("`require` of a credential is true or false", reason="bad_terms")
    shape = {
        "id": rule_id,
        "kind": kind,
        "slot": {"kind": slot.kind, "name": slot.name, "scheme": slot.scheme},
        "placeholder": placeholder,
        "require": require,
        "user": _text(data, "user", "x-access-token" if kind == "git" else ""),
        "region": _text(data, "region"),
        "service": _text(data, "service"),
    }
    return shape, _spec(data, kind, host, rule_id), environment, tuple(placeholders)


def _spec(data: Mapping[str, Any], kind: str, host: str, rule_id: str) -> SecretSpec:
    sources = {"value": str(Source.parse(data.get("source")))}
    facts: dict[str, Any] = {}
    if kind == "sigv4":
        if not data.get("region") or not data.get("service") or not data.get("key_id"):
            raise ParseError("a `sigv4` credential needs `region`, `service` and `key_id`", reason="bad_terms")
        sources["key_id"] = str(Source.parse(data["key_id"]))
        if "session_token" in data:
            sources["session_token"] = str(Source.parse(data["session_token"]))
        facts = {"region": data["region"], "service": data["service"]}
    if kind == "oauth2":
        if not _text(data, "token_url").startswith(("https://", "http://127.0.0.1:")) or not data.get("client_id"):
            raise ParseError("an `oauth2` credential needs `client_id` and an https `token_url`", reason="bad_terms")
        if "refresh_source" in data:
            sources["refresh_token"] = str(Source.parse(data["refresh_source"]))
        facts = {k: data[k] for k in ("token_url", "client_id", "scope", "audience", "in_body") if k in data}
    return SecretSpec(rule_id, host, kind, sources, facts)


@dataclass(frozen=True, slots=True)
class CompiledEgress:
    """All of one task. egress: what the broker is told in place of the policy's rules. specs and hosts: for the secrets
    process; without hosts none is needed. environment: placeholders, for the cell."""

    egress: dict[str, Any]
    specs: tuple[dict[str, Any], ...]
    hosts: tuple[str, ...]
    environment: dict[str, str]


def compile_policy(
    policy: EgressPolicy, *, random: Callable[[int], bytes], read_ca: Callable[[str], str]
) -> CompiledEgress:
    """The two halves of a whole allowlist. random: a secure source. read_ca: PEM text of a path.

    Raises UsageError, with the rule's id and the way to mend it.
    """
    rules: list[dict[str, Any]] = []
    specs: list[dict[str, Any]] = []
    hosts: dict[str, None] = {}
    environment: dict[str, str] = {}
    placeholders: list[str] = []
    #: by id and text: of a rule that is enabled for some of its ports there are two parts, with one credential
    compiled: dict[tuple[str, str, str], str] = {}
    for rule in policy.allow:
        data = rule.to_json()
        part = rule.id, rule.host, rule.http
        if part in compiled:
            data["http"] = compiled[part]
            if json.loads(rule.http).get("credential") is not None:
                _check_ports(rule)
        elif rule.http:
            entry = json.loads(rule.http)
            try:
                ca_pem = read_ca(entry["ca"]) if entry.get("ca") else ""
                made = compile_entry(entry, host=rule.host, rule_id=rule.id, random=random, ca_pem=ca_pem)
            except ParseError as e:
                raise UsageError(f"`{rule.id}` ({rule.host}): {e}", hint="see docs/CREDENTIALS.md") from None
            if made.secret is not None:
                _check_ports(rule)
                specs.append(made.secret.to_json())
            hosts[rule.host] = None
            clash = sorted(set(environment) & set(made.environment))
            if clash:
                raise UsageError(f"two credentials set the variable `{clash[0]}`", hint="give each an `env` of its own")
            environment |= made.environment
            placeholders += made.placeholders
            data["http"] = compiled[part] = json.dumps(made.terms, sort_keys=True)
        rules.append(data)
    try:
        Limits.parse(json.loads(policy.budget) if policy.budget else {})
    except ParseError as e:
        raise UsageError(f"`egress.budget`: {e}") from None
    budget = json.loads(policy.budget) if policy.budget else {}
    egress = {"allow": rules, "placeholders": placeholders, "budget": budget, "processes": policy.processes}
    return CompiledEgress(egress, tuple(specs), tuple(hosts), environment)


def _check_ports(rule: EgressRule) -> None:
    if 80 in rule.ports and rule.connect_to is None:
        raise UsageError(
            f"`{rule.id}` ({rule.host}): a credential is never sent without TLS, and port 80 has none",
            hint="leave port 80 out of this rule",
        )
