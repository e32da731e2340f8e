"""Terminated hosts of one run: the policy compiled, the secrets process started, the cell's trust made.

Imported only where a rule has `http`: a run without one pays nothing for it.

I1  The cell gets placeholders and certificates; sources and secrets stay with the secrets process.
I2  No source runs a program that lies in the workspace.
I3  A policy that cannot be compiled stops the run before anything starts.
"""

from __future__ import annotations

import json
import os
import shlex
from typing import TYPE_CHECKING

from saggar.core.errors import Unenforceable, UsageError
from saggar.egress.secrets_spawn_host import start_secrets
from saggar.egress.terms import compile_policy
from saggar.egress.trust import NSS_LIBRARIES, SYSTEM_BUNDLES, trust
from saggar.policy.file_host import is_below, search_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from saggar.egress.trust import Trust
    from saggar.policy.model import EgressPolicy

_JAVA = ("/usr/bin/java", "/usr/lib/jvm")


class Terminating:
    """Owned by a run. egress: what the broker is told; environment: of the cell, placeholders and trust."""

    __slots__ = ("compiled", "egress", "environment", "secrets", "trust")

    def __init__(
        self,
        policy: EgressPolicy,
        run_id: str,
        env: Mapping[str, str],
        workspace: str,
        *,
        check: Callable[[Sequence[Mapping[str, Any]]], None],
    ) -> None:
        """workspace: the directory that the cell may have written. check: raises where a secret's source may not be used
        beside this cell. Raises UsageError, Unenforceable."""
        self.compiled = compile_policy(policy, random=os.urandom, read_ca=_read_ca)
        check(self.compiled.specs)
        env = _outside(self.compiled.specs, env, workspace)
        roots_path = next((p for p in SYSTEM_BUNDLES if os.path.isfile(p)), "")
        roots = _read(roots_path) if roots_path else ""
        java = roots if any(map(os.path.exists, _JAVA)) else ""
        try:
            self.secrets = start_secrets(self.compiled.specs, env)
            ca_pem, store = self.secrets.add(run_id, run_id, self.compiled.hosts, self.compiled.specs, java_roots=java)
        except OSError as e:
            raise Unenforceable(
                "the process that holds the secrets cannot be started",
                cause=e.strerror or type(e).__name__,
                remedy="run `saggar doctor`",
            ) from None
        bundles = [p for p in SYSTEM_BUNDLES if os.path.isfile(p) and not os.path.islink(p)]
        nss = any(map(os.path.exists, NSS_LIBRARIES))
        self.trust: Trust = trust(ca_pem, f"saggar task {run_id}"[:64], roots, bundles, store, nss=nss)
        self.egress = self.compiled.egress
        self.environment = {**self.trust.environment, **self.compiled.environment}

    @property
    def enforcement(self) -> dict[str, str]:
        """What the secrets process could take away from itself."""
        return dict(self.secrets.lockdown)

    def terms(self) -> dict[str, str]:
        """The compiled terms (JSON text) of each terminated rule, by its id."""
        return {rule["id"]: rule["http"] for rule in self.egress["allow"] if rule.get("http")}

    def rules_json(self, policy: EgressPolicy, approved: Sequence[Mapping[str, Any]] = ()) -> bytes:
        """What the broker is told for `policy`: this run's own, or one changed since by `saggar allow` and `deny`.

        A terminated rule keeps the terms that it was compiled to; one that came later has no secrets process and is left out.
        """
        made = {rule["id"]: rule for rule in self.egress["allow"]}
        kept = [
            {**made[rule.id], "ports": list(rule.ports), "enabled": rule.enabled}
            if rule.id in made
            else None
            if rule.http
            else rule.to_json()
            for rule in policy.allow
        ]
        allow = [rule for rule in kept if rule is not None]
        return json.dumps({"egress": {**self.egress, "allow": allow, "approved": list(approved)}}).encode()

    def stop(self) -> None:
        """End the secrets process: the CA and every lease die with it."""
        self.secrets.stop()


def _outside(specs: Iterable[Mapping[str, Any]], env: Mapping[str, str], workspace: str) -> dict[str, str]:
    """`env` with a PATH that leads nowhere into the workspace. Raises UsageError for a secret's command that lies there."""
    path = search_path(env.get("PATH", ""), workspace) or "/usr/bin:/bin"
    if os.path.realpath(workspace) != "/":  # where all of the machine is the workspace, no program is outside
        for spec in specs:
            for source in spec["sources"].values():
                kind, _, command = str(source).partition(":")
                program = shlex.split(command)[0] if kind == "command" else ""
                if program and is_below(program, workspace):
                    raise UsageError(
                        f"the command of a secret lies in the workspace: `{program}`",
                        hint="it would run outside the cell; keep it where no cell can write",
                    )
    return {**env, "PATH": path}


def _read(path: str) -> str:
    with open(path, encoding="ascii", errors="ignore") as f:
        return f.read()


def _read_ca(path: str) -> str:
    try:
        text = _read(path)
    except OSError as e:
        raise UsageError(f"the CA file `{path}` cannot be read: {e.strerror}") from None
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise UsageError(f"the CA file `{path}` holds no certificate")
    return text
