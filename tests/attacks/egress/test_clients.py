"""Ordinary clients through the transparent path, the proxy address and the resolver: what must work."""

import pytest

PROXIES = {
    "transparent": [],
    "connect": ["-x", "http://198.19.255.53:3128"],
    "socks": ["-x", "socks5h://198.19.255.53:3128"],
    "connect on a captured port": ["-x", "http://203.0.113.1:80"],
}


@pytest.mark.parametrize("proxy", PROXIES)
def test_https_reaches_the_listed_host(cell, pki, tls_upstream, proxy):
    done = cell.run("curl", "-sS", "-m", "10", "--cacert", pki.ca_file, *PROXIES[proxy], "https://api.allowed.test/a")
    assert done.stdout == "hello from upstream: GET /a HTTP/1.1", done.stderr
    record = cell.wait_record(kind="egress.decision", effect="allow")
    assert (record["reason"], record["rule"], record["detail"]["host"]) == ("listed", "api", "api.allowed.test")
    assert record["detail"]["connect_to"] == f"127.0.0.1:{tls_upstream.port}"


@pytest.mark.parametrize("proxy", PROXIES)
def test_plain_http_is_written_anew(cell, http_upstream, proxy):
    done = cell.run(
        "curl", "-sS", "-m", "10", *PROXIES[proxy], "-H", "X-Forwarded-Host: evil.test", "http://API.allowed.test/a?b=c"
    )
    assert done.stdout == "hello from upstream: GET /a?b=c HTTP/1.1", done.stderr
    assert b"Host: api.allowed.test\r\n" in http_upstream.bytes
    assert b"evil.test" not in http_upstream.bytes
    assert cell.wait_record(effect="allow", rule="plain")["detail"]["scheme"] == "http"


def test_a_further_port_has_its_own_listener(cell, http_upstream):
    done = cell.run("curl", "-sS", "-m", "10", "http://api.allowed.test:8080/x")
    assert done.stdout == "hello from upstream: GET /x HTTP/1.1", done.stderr


def test_a_wildcard_covers_one_label(cell, pki):
    done = cell.run("curl", "-sS", "-m", "10", "--cacert", pki.ca_file, "https://x.wild.test/a")
    assert done.stdout == "hello from upstream: GET /a HTTP/1.1", done.stderr
    assert cell.wait_record(effect="allow")["rule"] == "wild"
