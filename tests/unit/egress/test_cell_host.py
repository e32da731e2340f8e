"""A cell's closing records: what it did is told, however much it tries to fill them."""

import asyncio
import json
import socket
from concurrent.futures import ThreadPoolExecutor

from saggar.audit.sink_host import AuditLog
from saggar.egress.cell_host import Cell
from saggar.egress.destination import Destination
from saggar.egress.ledger import Used, read
from saggar.egress.shares_host import Shares
from saggar.egress.usage import MAX_HOSTS, MAX_REFUSALS, Usage
from saggar.policy.model import EgressRule

RULE = EgressRule(id="r", host="*.a.test", ports=(443,))


def name(number):
    return f"{number:04}." + ".".join(["x" * 60] * 3) + ".a.test"


def records(tmp_path, fill):
    async def run():
        with ThreadPoolExecutor(1) as pool:
            audit = AuditLog(str(tmp_path / "audit.jsonl"), "t")
            cell = Cell(
                id="c",
                rules=[RULE],
                audit=audit,
                pool=pool,
                emit=lambda _: None,
                share=Shares(asyncio.get_running_loop()).join(),
            )
            fill(cell.usage)
            for part in cell.summaries():
                cell.note("egress.summary", reason="removed", **part)
            cell.close()
            audit.close()

    asyncio.run(run())
    return [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]


def test_refusals_cannot_blank_what_was_used(tmp_path):
    """1000 refusals of 260 bytes were one record with all else, and the record was cut to its digest."""

    def fill(usage):
        usage.add_allowed(str(Destination("b.a.test", 443, "tls")))
        usage.add_bytes(Destination("b.a.test", 443, "tls"), 5, 7)
        for n in range(MAX_REFUSALS + 50):
            usage.add_refused(name(n), "host_not_listed\udcff", told=True)

    found = records(tmp_path, fill)
    assert all("detail_sha256" not in r["detail"] for r in found)
    used = {k: v for r in found for k, v in r["detail"].get("used", {}).items()}
    assert used == {"b.a.test:443": {"count": 1, "bytes_up": 5, "bytes_down": 7}}
    assert [d for r in found for d in r["detail"].get("declared", [])] == [
        {"host": "*.a.test", "ports": [443], "id": "r"}
    ]
    assert sum(len(r["detail"].get("refused", {})) for r in found) == MAX_REFUSALS
    assert (found[0]["detail"]["refused_left_out"], found[0]["detail"]["refused_total"]) == (50, MAX_REFUSALS + 50)
    ledger = read(found)
    assert (ledger.total, ledger.refused_total) == (Used(1, 5, 7), MAX_REFUSALS + 50)


def test_places_are_bounded_and_totals_stay_true(tmp_path):
    """Below a wildcard the cell chooses the names."""

    def fill(usage):
        for n in range(MAX_HOSTS + 30):
            usage.add_allowed(str(Destination(name(n), 443, "tls")))
            usage.add_bytes(Destination(name(n), 443, "tls"), 2, 3)

    found = records(tmp_path, fill)
    assert all("detail_sha256" not in r["detail"] for r in found)
    assert sum(len(r["detail"].get("used", {})) for r in found) == MAX_HOSTS
    assert found[0]["detail"]["used_elsewhere"] == {"count": 30, "bytes_up": 60, "bytes_down": 90}
    total = MAX_HOSTS + 30
    assert read(found).total == Used(total, 2 * total, 3 * total)


def test_usage_is_bounded():
    usage = Usage()
    for n in range(5000):
        usage.add_allowed(str(Destination(name(n), 443, "tls")))
        usage.add_refused(name(n), "r", told=False)
    assert (len(usage.hosts), len(usage.refusals), usage.refusals_left_out) == (MAX_HOSTS, MAX_REFUSALS, 4000)


def test_accepted_sockets_inherit_what_their_listener_was_told(tmp_path):
    """An urgent byte stays where it was sent, in what is judged and in what is passed on."""
    found = []

    async def run():
        with ThreadPoolExecutor(1) as pool, socket.create_server(("127.0.0.1", 0)) as listener:
            audit = AuditLog(str(tmp_path / "audit.jsonl"), "t")
            share = Shares(asyncio.get_running_loop()).join()
            cell = Cell(id="c", rules=[RULE], audit=audit, pool=pool, emit=lambda _: None, share=share)
            address = listener.getsockname()
            cell.adopt({"kind": "tcp", "address": address[0], "port": address[1]}, listener)
            with socket.create_connection(address):
                cell._accept(listener, found.append)
            for sock in found:
                with sock:
                    assert not sock.getblocking()
                    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_OOBINLINE)
                    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            cell.close()
            audit.close()

    asyncio.run(run())
    assert len(found) == 1
