"""Runs `terminated.ATTACKS`: a real cell with terminated hosts, and an upstream over TLS that writes down what reaches it.

A row is `held` where the status, the audit record's reason and what both sides saw are right; `breach` where a secret, a
placeholder or a refused request got across; `error` otherwise.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

from saggar.bench.egress.attack import AWS_ID, AWS_SECRET, GIT_SECRET, HOSTS, SECRET, TERMS
from saggar.bench.egress.row import Row
from saggar.bench.egress.terminated import CONTROLS
from saggar.egress.remedies import remedy
from saggar.policy.model import EgressPolicy, EgressRule, Policy, WorkspacePolicy
from saggar.testing.upstream import TestPki, Upstream, respond_hello

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from saggar.bench.egress.attack import Attack
    from saggar.runtime.api_host import Process

_EXCHANGE_S = 30.0
_RECORD_S = 5.0
_SECRETS = (SECRET, GIT_SECRET, AWS_SECRET)

#: inside: the variables first, then one JSON request a line, one JSON answer a line
_AGENT = r"""
import json, os, socket, ssl, sys
context = ssl.create_default_context()
print(json.dumps(dict(os.environ)), flush=True)
for line in sys.stdin:
    ask = json.loads(line); got = b""; end = ""
    try:
        s = context.wrap_socket(socket.create_connection((ask["host"], 443), 20), server_hostname=ask["host"])
        for i, piece in enumerate(ask["sends"]):
            if i: got += s.recv(65536)
            s.sendall(bytes.fromhex(piece))
        while part := s.recv(65536): got += part
        end = "eof"
    except ssl.SSLError as e: end = f"tls:{e.reason}"
    except ConnectionError: end = "reset"
    except OSError as e: end = f"errno:{e.errno}"
    finally:
        try: s.close()
        except NameError: pass
    print(json.dumps({"reply": got.hex()[:40000], "end": end}), flush=True)
"""


class TerminatedBench:
    """progress is called with each row as it is made. processes: of the broker's, for the cell."""

    def __init__(self, progress: Callable[[Row], None], processes: int = 1) -> None:
        self._processes = processes
        self._progress = progress

    def run(self, attacks: Iterable[Attack]) -> list[Row]:
        chosen = list(attacks)
        if not chosen:
            return []
        with tempfile.TemporaryDirectory(prefix="saggar-egress-") as directory:
            return asyncio.run(self._in_cell(directory, chosen))

    async def _in_cell(self, directory: str, attacks: list[Attack]) -> list[Row]:
        import saggar

        os.environ["SAGGAR_STATE_DIR"] = os.path.join(directory, "state")
        os.environ.update(BENCH_KEY=SECRET, BENCH_GIT_KEY=GIT_SECRET, BENCH_AWS_ID=AWS_ID, BENCH_AWS_SECRET=AWS_SECRET)
        pki = TestPki(directory, HOSTS)
        with Upstream(context=pki.server_context()) as upstream:
            self._upstream = upstream
            rules = tuple(
                EgressRule(id=id_, host=host, connect_to=upstream.address, http=json.dumps({"ca": pki.ca_file, **http}))
                for id_, host, http in TERMS
            )
            policy = Policy(
                egress=EgressPolicy(allow=rules, processes=self._processes), workspace=WorkspacePolicy(mode="none")
            )
            async with await saggar.spawn(["python3", "-c", _AGENT], policy, timeout_s=1200) as process:
                self._log = os.path.join(directory, "state", "runs", process.id, "audit.jsonl")
                self._cursor = 0
                self._names: dict[str, str] = json.loads(await process.stdout.readline())
                proven = await self._controls(process, {a.host for a in attacks})
                rows = []
                for attack in attacks:
                    rows.append(await self._attack(process, attack, proven))
                    self._progress(rows[-1])
                process.stdin.close()
                await process.wait()
        for name in ("BENCH_KEY", "BENCH_GIT_KEY", "BENCH_AWS_ID", "BENCH_AWS_SECRET"):
            del os.environ[name]
        return rows

    async def _exchange(self, process: Process, host: str, sends: list[bytes]) -> tuple[bytes, str]:
        process.stdin.write(json.dumps({"host": host, "sends": [s.hex() for s in sends]}).encode() + b"\n")
        await process.stdin.drain()
        line = await asyncio.wait_for(process.stdout.readline(), _EXCHANGE_S)
        answer = json.loads(line)
        return bytes.fromhex(answer["reply"]), str(answer["end"])

    async def _controls(self, process: Process, hosts: set[str]) -> set[str]:
        """The hosts whose control reached the upstream with what must stand in it, and leaked nothing inside."""
        proven = set()
        for host in hosts:
            make, wanted = CONTROLS[host]
            seen = len(self._upstream.bytes)
            reply, _ = await self._exchange(process, host, make(self._names))
            if wanted in self._upstream.bytes[seen:] and reply.startswith(b"HTTP/1.1 200 ") and not _leaked(reply):
                proven.add(host)
        if any(s in json.dumps(self._names) for s in _SECRETS):
            return set()
        self._fresh()
        return proven

    async def _attack(self, process: Process, attack: Attack, proven: set[str]) -> Row:
        row = Row(attack.name, attack.row)
        if attack.host not in proven:
            row.evidence = f"the control of `{attack.host}` did not reach the upstream"
            return row
        self._upstream.respond = (lambda _: attack.respond) if attack.respond else respond_hello
        seen, accepted = len(self._upstream.bytes), self._upstream.accepted
        try:
            reply, end = await self._exchange(process, attack.host, attack.send(self._names))
        except (TimeoutError, ValueError) as e:
            row.evidence = f"no answer: {type(e).__name__}"
            return row
        fresh = self._upstream.bytes[seen:]
        dialled = self._upstream.accepted - accepted
        self._judge(row, attack, reply=reply, end=end, fresh=fresh, dialled=dialled)
        return row

    def _judge(self, row: Row, attack: Attack, *, reply: bytes, end: str, fresh: bytes, dialled: int) -> None:
        records = self._wait(attack.reason)
        reasons = {r["reason"] for r in records} | {r["rule"] for r in records}
        row.reason = attack.reason if attack.reason in reasons else ",".join(sorted(filter(None, reasons)))
        breach = self._breach(attack, reply, fresh, dialled, json.dumps(records))
        if breach:
            row.verdict, row.evidence = "breach", breach
        elif not reply.startswith(b"HTTP/1.1 %d " % attack.status):
            row.evidence = f"wanted {attack.status}, got {end} {reply[:60]!r}"
        elif untold := _untold(attack, reply):
            row.evidence = f"the page does not name {untold}: {reply[-200:]!r}"
        elif attack.reason not in reasons:
            row.evidence = f"wanted the reason {attack.reason}, the log has {row.reason or 'none'}"
        else:
            row.verdict = "held"

    def _breach(self, attack: Attack, reply: bytes, fresh: bytes, dialled: int, records: str) -> str:
        if _leaked(reply) or any(a in reply for a in attack.absent if a != b"DELETE"):
            return f"the cell was told {reply[:120]!r}"
        if any(s in records for s in _SECRETS):
            return "the log holds a secret"
        # the rest of an upload that was cut before may arrive only now: a request is what has a request line
        if not attack.forwarded and (dialled or b" HTTP/1.1\r\n" in fresh):
            return f"dialled {dialled}, the upstream saw {fresh[:60]!r}"
        if not attack.respond and any(a in fresh for a in attack.absent):
            return f"the upstream saw {fresh[:120]!r}"
        if any(
            p.encode() in fresh for n, p in self._names.items() if n.endswith("PLACEHOLDER") or n == "AWS_ACCESS_KEY_ID"
        ):
            return "the upstream saw a placeholder"
        if fresh.count(b" HTTP/1.1\r\n") > 1 and "second request in a body" not in attack.name:
            return "the upstream saw two requests"
        return ""

    def _fresh(self) -> list[dict[str, Any]]:
        with open(self._log, encoding="utf-8") as f:
            lines = [line for line in f if line.endswith("\n")]
        fresh, self._cursor = lines[self._cursor :], len(lines)
        return [r for r in map(json.loads, fresh) if r["layer"] == "L2"]

    def _wait(self, reason: str) -> list[dict[str, Any]]:
        deadline = time.monotonic() + _RECORD_S
        found: list[dict[str, Any]] = []
        while True:
            found += self._fresh()
            if any(reason in (r["reason"], r["rule"]) for r in found) or time.monotonic() > deadline:
                return found
            time.sleep(0.01)


def _untold(attack: Attack, reply: bytes) -> str:
    """What a page of ours leaves out: host, rule or remedy. Empty where nothing, or where it is the upstream's page."""
    head, _, body = reply.partition(b"\r\n\r\n")
    if b"\r\nX-Saggar-Reason: " not in head or not body:
        return ""
    reason = head.partition(b"\r\nX-Saggar-Reason: ")[2].partition(b"\r\n")[0].decode()
    wanted = {"host": attack.host, "rule": "[rule `", "remedy": remedy(reason), "reason": f"({reason})"}
    return next((name for name, text in wanted.items() if text.encode() not in body), "")


def _leaked(data: bytes) -> bool:
    return any(s.encode() in data for s in _SECRETS)
