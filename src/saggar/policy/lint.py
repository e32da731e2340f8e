"""Rules that are valid and still let more out than they seem to.

An allowlist entry is a grant, not a filter: on a host that anyone can write to, whoever steers the agent brings an
account of their own (the Cowork disclosure of January 2026).
"""

from __future__ import annotations

from dataclasses import dataclass

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from saggar.policy.model import EgressRule, Policy

#: hosts (and everything below them) where strangers open accounts and upload, publish or post
WRITABLE = frozenset(
    {
        "amazonaws.com",
        "anthropic.com",
        "azurewebsites.net",
        "bitbucket.org",
        "codeberg.org",
        "core.windows.net",
        "discord.com",
        "dropboxapi.com",
        "file.io",
        "github.com",
        "githubusercontent.com",
        "gitlab.com",
        "googleapis.com",
        "graph.microsoft.com",
        "huggingface.co",
        "openai.com",
        "pastebin.com",
        "r2.cloudflarestorage.com",
        "slack.com",
        "sr.ht",
        "telegram.org",
        "transfer.sh",
        "webhook.site",
        "workers.dev",
    }
)
_SECRETIVE = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS", "AUTH", "COOKIE")


@dataclass(frozen=True, slots=True)
class Finding:
    """path: dotted key. message: what is doubtful, and what would mend it."""

    path: str
    message: str


def lint(policy: Policy) -> list[Finding]:
    """What deserves a second look in a policy that loads."""
    return [*_egress(policy), *_environment(policy), *_workspace(policy)]


def _egress(policy: Policy) -> Iterator[Finding]:
    for i, rule in enumerate(policy.egress.allow):
        path = f"egress.allow[{i}]"
        if writable_by_anyone(rule.host) and not _narrowed(rule):
            message = (
                f"anyone can write to `{rule.host}`: a grant for the whole host lets data out to a stranger's account; "
                "allow it with methods and paths only"
            )
            yield Finding(f"{path}.host", message)
        if rule.allow_metadata:
            yield Finding(f"{path}.allow_metadata", f"`{rule.host}` gives this host's cloud credentials to the command")
        if 80 in rule.ports:
            yield Finding(
                f"{path}.ports", f"port 80 of `{rule.host}` is unencrypted: others on the way read and change it"
            )


def writable_by_anyone(host: str) -> bool:
    """Whether the name, a parent of it, or (for a wildcard) a name below it is in `WRITABLE`."""
    labels = host.removeprefix("*.").split(".")
    if any(".".join(labels[i:]) in WRITABLE for i in range(len(labels))):
        return True
    return host.startswith("*.") and any(name.partition(".")[2] == host[2:] for name in WRITABLE)


def _narrowed(rule: EgressRule) -> bool:
    """Whether requests are read and something is said about them."""
    from saggar.policy.http import shown

    http = shown(rule.http) or {}
    return bool(http.get("profile") or http.get("rules"))


def _environment(policy: Policy) -> Iterator[Finding]:
    named = [("environment.pass", n) for n in policy.environment.pass_]
    named += [(f"environment.set.{n}", n) for n, _ in policy.environment.set]
    for path, name in named:
        if set(name.upper().replace("-", "_").split("_")) & set(_SECRETIVE):
            yield Finding(path, f"`{name}` looks like a secret, and the command would hold it")


def _workspace(policy: Policy) -> Iterator[Finding]:
    if policy.workspace.mode == "read-write":
        yield Finding(
            "workspace.mode", "`read-write` changes the host's files at once, git hooks and settings included"
        )
    if policy.workspace.unsafe_broad:
        yield Finding("workspace.unsafe_broad", "the workspace may be `/` or a whole home directory")
