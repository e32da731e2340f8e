"""What a program inside is told about a refusal, beside the host and the rule: what is wrong, and what mends it.

I1  Every reason of a refusal has a remedy; a test walks over all that the source can give.
I2  Nothing here can hold a secret, a path of the host or an address: texts are constant, but for a canonical destination.

Pure.
"""

from __future__ import annotations

#: what is told of an upstream's faults
UPSTREAM_FAULTS = {
    "upstream_certificate": "the upstream's certificate could not be verified",
    "upstream_tls": "no TLS connection to the upstream could be made",
    "upstream_closed": "the upstream closed the connection before its answer was complete",
    "bad_response": "the upstream's answer is malformed",
    "bad_framing": "the upstream's answer is malformed",
    "encoded_response": "the upstream compressed an answer that must be read here",
    "unsolicited_upgrade": "the upstream switched protocols unasked",
    "upstream_timeout": "the upstream did not answer in time",
    "unreachable": "the upstream could not be reached",
    "resolve_failed": "the name does not resolve",
    "token_answer_malformed": "the token endpoint's answer cannot be read, so its tokens cannot be taken out",
    "token_answer_too_large": "the token endpoint's answer cannot be read, so its tokens cannot be taken out",
    "address_refused": "the name resolves to an address that is never dialled",
}

#: what is wrong, where the refusal itself does not say it; `{where}` is filled in from a canonical destination alone
WHAT = {
    "host_not_listed": "{where} is not in this task's allowlist",
    "port_not_listed": "{where} is not in this task's allowlist (other ports of the host are)",
    "metadata_name": "metadata services are never reachable",
    "ip_literal": "addresses are not reachable, only names in this task's allowlist",
    "bad_host_name": "the host name is malformed",
    "bad_port": "the port is malformed",
    "name_mismatch": "the request for {where} names another host than the connection is for",
    "address_refused": "{where} resolves to an address that is never dialled",
    "resolve_failed": "{where} does not resolve",
    "resolve_rate": "this task asked for too many names at once ({where})",
    "unreachable": "{where} could not be reached",
    "peer_mismatch": "{where} is not what was dialled",
    "too_many_connections": "this task has too many open connections ({where})",
    "out_of_descriptors": "the broker has no descriptor left for {where}",
    "revoked": "{where} is no longer in this task's allowlist",
    "no_name": "TLS without a server name",
    "ech_unreadable": "{where}: the ClientHello is encrypted and its name cannot be read",
    "malformed_hello": "the ClientHello is malformed",
    "unknown_protocol": "neither TLS nor HTTP",
    "sniff_timeout": "the first bytes did not come in time",
    "no_first_flight": "nothing was sent",
    "malformed_request": "the request is malformed",
    "bad_framing": "the message could end in two places",
    "head_too_large": "the head is too large",
    "method_refused": "the method is not served",
    "h2_refused": "{where}: only HTTP/1.1 is served",
    "upgrade_refused": "{where}: the connection cannot be upgraded",
    "bad_response": "{where} sent a malformed answer",
    "upstream_timeout": "{where} did not answer in time",
    "terminated_unavailable": "{where} needs its requests read, and nothing is there to read them",
    "broker_fault": "a fault of the broker",
    "approval_unavailable": "the request needs a person's approval",
}

_CLIENT = "send a request that has one meaning: RFC 9112 as it is written"
_UPSTREAM = "the fault is the upstream's; try again, or tell the operator"
_NAME = "use one name, a plain host name of the allowlist, throughout"
_RULE = "ask the operator for a rule that covers this method and path"
_BUDGET = "the operator can raise `budget` in the policy"
_AGAIN = "try again later; where it stays, tell the operator"

#: what a reader inside can do about it; a name that ends in `_` stands for all reasons that begin so
REMEDIES = {
    "host_not_listed": "the operator can run `saggar allow {where}`",
    "port_not_listed": "the operator can run `saggar allow {where}`",
    "revoked": "the operator can run `saggar allow {where}`",
    "metadata_name": "the operator can set `allow_metadata = true` on its rule",
    "ip_literal": _NAME,
    "bad_host_name": _NAME,
    "bad_port": "a port is a number of 1 to 65535",
    "name_mismatch": _NAME,
    "no_name": "let the client send the server's name (SNI)",
    "ech_unreadable": "switch Encrypted ClientHello off",
    "malformed_hello": "speak TLS 1.2 or later, or HTTP/1.1",
    "unknown_protocol": "speak TLS or HTTP/1.1; other protocols need a port of their own in the policy",
    "sniff_timeout": "speak first, and within ten seconds",
    "no_first_flight": "speak first, and within ten seconds",
    "request_timeout": "send the request without a long pause",
    "protocol_refused": "use TCP",
    "malformed_query": "ask for a name as RFC 1035 has it",
    "address_refused": "the operator can set `connect_to` on its rule, if that address is meant",
    "resolve_failed": _UPSTREAM,
    "resolve_rate": "ask for fewer names a second",
    "unreachable": _UPSTREAM,
    "peer_mismatch": _UPSTREAM,
    "bad_response": _UPSTREAM,
    "encoded_response": "the upstream must answer unencoded here: its operator can switch compression off",
    "unsolicited_upgrade": _UPSTREAM,
    "upstream_": _UPSTREAM,
    "upstream_certificate": "the operator can name the upstream's CA with `ca` on the rule",
    "token_answer_": _UPSTREAM,
    "secret_in_answer": "the upstream must not send the credential back",
    "too_many_connections": "close connections that are not needed",
    "too_many_names": "use fewer names of the wildcard",
    "out_of_descriptors": _AGAIN,
    "terminated_unavailable": "the operator must start a new run for a rule with `http`",
    "terms_unreadable": "the operator must mend `http` of the rule",
    "broker_fault": "tell the operator; the audit log says more",
    "malformed_request": _CLIENT,
    "bad_framing": _CLIENT,
    "bad_frame": "send frames as RFC 6455 has them, masked, without extensions",
    "head_too_large": "send less than 64 KiB and 200 fields",
    "target_too_long": "send a target of less than 16 KiB",
    "method_refused": "use a method of HTTP that is served here",
    "method_unknown": "use a method that a rule of this host names",
    "method_not_allowed": "ask the operator for a rule that covers this method",
    "h2_refused": "speak HTTP/1.1",
    "upgrade_refused": "the operator can set `websocket = true` in `http` of the rule",
    "no_rule_matches": _RULE,
    "rule_denies": "the operator's rule forbids it",
    "path_": "send the path in its one canonical form",
    "path_encoded_slash": "the operator can set `encoded_slash = true` in `http` of the rule",
    "query_": "send the query in its one canonical form",
    "body_too_large": "send less, or ask the operator for a larger `max_body`",
    "body_unreadable": "send the body uncompressed and in UTF-8, so that it can be looked at for keys",
    "placeholder_missing": "send the key found in the environment, unchanged",
    "foreign_credential": "only this task's own credential may be used here; the broker adds it",
    "canary": "the key in the environment works only on its own host, in its own place",
    "sigv4_": "sign with the key found in the environment, for the pinned region and service, in the `Authorization` header",
    "insecure_upstream": "use https",
    "credential_unavailable": "its source gave none, and `saggar log` tells the operator why; try again later",
    "leaf_unavailable": _AGAIN,
    "approval_unattended": "the operator can start the run with `--ask hold`, and answer with `saggar egress approve`",
    "approval_timeout": "the operator can answer with `saggar egress approve` while the request waits",
    "approval_denied": "do not send it again",
    "approval_too_long": "send what is long in the body, or ask the operator for a rule that allows it",
    "approval_crowded": "wait until the operator has answered some",
    "budget_": _BUDGET,
    "budget_rate": "wait as long as `Retry-After` says",
}


def remedy(reason: str, where: object = "this host") -> str:
    """What mends a refusal; a rule's own reason is mended by the rule."""
    found = REMEDIES.get(reason)
    if found is None:
        found = next(
            (t for n, t in REMEDIES.items() if n.endswith("_") and reason.startswith(n)), REMEDIES["rule_denies"]
        )
    return found.format(where=where)


def explain(reason: str, where: object | None = None) -> str:
    """One line: what is wrong, and what mends it."""
    place = "this host" if where is None else where
    return f"{WHAT.get(reason, 'the request was refused').format(where=place)}; {remedy(reason, place)}"
