"""Runs the attempts: one real cell, one broker, upstreams on loopback that write down what reaches them.

A row is `held` (the answer is the right one, nothing was dialled, the audit record gives the reason), `breach` (an upstream
was dialled, or answered) or `error` (anything else: never counted as held).
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from typing import TYPE_CHECKING, Any

from saggar.bench.egress.attempts import ATTEMPTS, CONTROLS, RESOLUTIONS, Attempt, Resolution
from saggar.bench.egress.row import Row
from saggar.bench.egress.terminated import ATTACKS
from saggar.bench.egress.terminated_host import TerminatedBench
from saggar.egress.alerts import ACCESS_DENIED, INTERNAL_ERROR
from saggar.policy.model import EgressPolicy, EgressRule, Policy, WorkspacePolicy
from saggar.testing import client_hello as h
from saggar.testing.egress_cell import EgressCell
from saggar.testing.upstream import TestPki, Upstream, respond_hello

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from saggar.runtime.api_host import Process

_EXCHANGE_S = 20.0
_RECORD_S = 5.0

#: inside: one JSON request a line, one JSON answer a line
_AGENT = r"""
import json, socket, sys
for line in sys.stdin:
    ask = json.loads(line); out = {"reply": "", "end": ""}
    s = socket.socket(socket.AF_INET6 if ":" in ask["to"][0] else socket.AF_INET, socket.SOCK_DGRAM if ask["udp"] else socket.SOCK_STREAM)
    s.settimeout(15)
    try:
        s.connect(tuple(ask["to"])); got = b""
        for i, piece in enumerate(ask["sends"]):
            if i: got += s.recv(65536)
            s.sendall(bytes.fromhex(piece))
        if ask["control"]:
            s.settimeout(2)
        while part := s.recv(65536):
            got += part
            if ask["udp"]: break
        out["end"] = "eof"
    except ConnectionResetError: out["end"] = "reset"
    except TimeoutError: out["end"] = "timeout"
    except OSError as e: out["end"] = f"errno:{e.errno}"
    try: out["reply"] = got.hex()[:20000]
    except NameError: pass
    got = b""
    s.close(); print(json.dumps(out), flush=True)
"""


class Bench:
    """progress is called with each row as it is made. processes: of the broker's, for each cell."""

    def __init__(self, progress: Callable[[Row], None] | None = None, processes: int = 1) -> None:
        self._processes = processes
        self._progress = progress or (lambda _: None)
        self._cursor = 0

    def run(self, names: Iterable[str] = ()) -> list[Row]:
        """Every attempt, or those named."""
        wanted = set(names)
        attempts = [a for a in ATTEMPTS if not wanted or a.name in wanted]
        rows: list[Row] = []
        if attempts:
            with tempfile.TemporaryDirectory(prefix="saggar-egress-") as directory:
                rows += asyncio.run(self._in_real_cell(directory, attempts))
        for resolution in RESOLUTIONS:
            if not wanted or resolution.name in wanted:
                rows.append(self._resolution(resolution))
                self._progress(rows[-1])
        return rows + TerminatedBench(self._progress, self._processes).run(
            [a for a in ATTACKS if not wanted or a.name in wanted]
        )

    # -- the real cell -------------------------------------------------------------------------------------------------

    async def _in_real_cell(self, directory: str, attempts: list[Attempt]) -> list[Row]:
        os.environ["SAGGAR_STATE_DIR"] = os.path.join(directory, "state")
        pki = TestPki(directory, ("api.allowed.test",))
        with Upstream(context=pki.server_context()) as tls, Upstream() as http:
            self._tls, self._http = tls, http
            rules = (
                EgressRule(id="api", host="api.allowed.test", connect_to=tls.address),
                EgressRule(id="plain", host="api.allowed.test", ports=(80, 8080), connect_to=http.address),
                EgressRule(id="b", host="b.allowed.test", connect_to=tls.address),
                EgressRule(id="b-plain", host="b.allowed.test", ports=(80,), connect_to=http.address),
                EgressRule(id="wild", host="*.wild.test", connect_to=tls.address),
            )
            policy = Policy(
                egress=EgressPolicy(allow=rules, processes=self._processes), workspace=WorkspacePolicy(mode="none")
            )
            import saggar

            async with await saggar.spawn(["python3", "-c", _AGENT], policy, timeout_s=1200) as process:
                self._log = os.path.join(directory, "state", "runs", process.id, "audit.jsonl")
                proven = await self._controls(process, {a.channel for a in attempts})
                rows = []
                for attempt in attempts:
                    rows.append(await self._attempt(process, attempt, proven))
                    self._progress(rows[-1])
                process.stdin.close()
                await process.wait()
        return rows

    async def _exchange(
        self,
        process: Process,
        to: tuple[str, int],
        sends: tuple[bytes, ...],
        *,
        udp: bool = False,
        control: bool = False,
    ) -> dict[str, Any]:
        ask = {"to": to, "sends": [s.hex() for s in sends], "udp": udp, "control": control}
        process.stdin.write(json.dumps(ask).encode() + b"\n")
        await process.stdin.drain()
        line = await asyncio.wait_for(process.stdout.readline(), _EXCHANGE_S)
        answer: dict[str, Any] = json.loads(line)
        return answer

    async def _controls(self, process: Process, channels: set[str]) -> set[str]:
        proven = {"udp", "dns"} & channels  # shown by the resolver's answer to a listed name, below
        for channel in sorted(channels & set(CONTROLS)):
            before = self._accepted()
            to, sends = CONTROLS[channel]
            await self._exchange(process, to, sends, control=True)
            if self._accepted() > before:
                proven.add(channel)
        if "dns" in proven:
            from saggar.bench.egress.attempts import RESOLVER, dns_query

            answer = await self._exchange(process, RESOLVER, (dns_query(b"api.allowed.test", 1),), udp=True)
            if not answer["reply"].endswith("c6120100"):
                proven.discard("dns")
        self._records()
        return proven

    def _accepted(self) -> int:
        return self._tls.accepted + self._http.accepted

    async def _attempt(self, process: Process, attempt: Attempt, proven: set[str]) -> Row:
        row = Row(attempt.name, attempt.row)
        if attempt.channel not in proven:
            row.evidence = f"the control of `{attempt.channel}` did not reach the upstream"
            return row
        self._http.respond = (lambda _: attempt.respond) if attempt.respond else respond_hello
        before = self._accepted()
        try:
            answer = await self._exchange(process, attempt.to, attempt.sends, udp=attempt.udp)
        except (TimeoutError, ValueError) as e:
            row.evidence = f"no answer: {type(e).__name__}"
            return row
        dialled = self._accepted() - before
        reply = bytes.fromhex(answer["reply"])
        # with a bad body or response the upstream is listed and dialled; it must then not be believed
        may_dial = attempt.channel in ("http-body", "response")
        if (dialled and not may_dial) or b"hello from upstream" in reply or b"HTTP/1.1 200 OK" in reply:
            row.verdict, row.evidence = "breach", f"dialled {dialled}, answer {reply[:60]!r}"
            return row
        self._judge(row, attempt, answer, reply)
        return row

    def _judge(self, row: Row, attempt: Attempt, answer: dict[str, Any], reply: bytes) -> None:
        if not _is_wanted(attempt.wants, answer, reply):
            row.evidence = f"wanted {attempt.wants}, got {answer['end']} {reply[:60]!r}"
            return
        reasons = self._wait_reasons(attempt)
        row.reason = ",".join(sorted(reasons))
        if not reasons or (attempt.reason and attempt.reason not in reasons):
            row.evidence = f"wanted the reason {attempt.reason}, the log has {row.reason or 'none'}"
            return
        row.verdict = "held"

    def _wait_reasons(self, attempt: Attempt) -> set[str]:
        """Reasons of the refusals recorded since the last attempt, waited for: the kernel's own are read a moment later.

        What was refused before under the same name or address is recorded once, and counts from the whole log.
        """
        deadline = time.monotonic() + _RECORD_S
        found: set[str] = set()
        while True:
            found |= self._records()
            if found or time.monotonic() > deadline:
                return found
            if attempt.channel == "dns":
                return {r["reason"] for r in self._all if r["kind"] == "egress.dns"}
            time.sleep(0.01)

    def _records(self) -> set[str]:
        with open(self._log, encoding="utf-8") as f:
            self._all = [json.loads(line) for line in f if line.endswith("\n")]
        fresh, self._cursor = self._all[self._cursor :], len(self._all)
        return {r["reason"] for r in fresh if r["layer"] == "L2" and r["effect"] == "deny"}

    # -- a cell whose broker has a resolver of ours --------------------------------------------------------------------

    def _resolution(self, resolution: Resolution) -> Row:
        row = Row(resolution.name, resolution.row)
        rule = EgressRule(id="r", host="api.allowed.test")
        try:
            with EgressCell(
                [rule], answers={"api.allowed.test": resolution.answers}, processes=self._processes
            ) as cell:
                with cell.connect("203.0.113.9", 443) as sock:
                    sock.sendall(h.hello())
                    reply = b""
                    while part := sock.recv(4096):
                        reply += part
                record = cell.wait_record(effect="deny", reason=resolution.reason)
                asked = cell.queries().count("1 api.allowed.test")
        except (OSError, TimeoutError) as e:
            row.evidence = f"{type(e).__name__}: {str(e)[:200]}"
            return row
        row.reason = record["reason"]
        if reply not in (ACCESS_DENIED, INTERNAL_ERROR):
            row.verdict, row.evidence = "breach", f"answer {reply[:60]!r}"
        elif asked != 1 or record["detail"].get("cause", "") != resolution.cause != "":
            row.evidence = f"asked {asked} times, cause {record['detail'].get('cause')}"
        else:
            row.verdict = "held"
        return row


def _is_wanted(wants: str, answer: dict[str, Any], reply: bytes) -> bool:
    kind, _, value = wants.partition(":")
    if kind == "prefix":
        return reply.startswith(bytes.fromhex(value))
    if kind == "dns":
        return len(reply) > 4 and reply[3] & 15 == int(value) and reply[6:8] == b"\0\0"
    if kind == "no-200":
        return answer["end"] in ("eof", "reset") and b" 200 " not in reply.split(b"\r\n")[0]
    return bool(answer["end"] == wants and not reply)
