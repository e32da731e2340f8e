"""Other programs that stand between a client and its hosts, measured beside ours: each optional, skipped by name.

squid and haproxy are the system's (or `SQUID`, `SQUID_OPENSSL`, `HAPROXY`: paths; `ssl_bump` needs Debian's
`squid-openssl`), mitmproxy is `MITMDUMP` or the `mitmdump` of the path. All run with their defaults but what is written here.
They are reached with the client's CONNECT on the host's loopback; ours takes the client from a cell, unasked.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from types import SimpleNamespace

from egress_load import NAME, free_port, running

#: to a terminated host ours adds a credential; a header of its own is the nearest that each of these has
_ADDON = "def request(flow):\n    flow.request.headers['authorization'] = 'Bearer sk-peer'\n"

_SQUID = """
http_port 127.0.0.1:{port} {bump}
acl all_of_it src all
http_access allow all_of_it
cache deny all
access_log none
cache_log {dir}/cache.log
pid_filename none
coredump_dir {dir}
shutdown_lifetime 0 seconds
visible_hostname bench
netdb_filename none
pinger_enable off
"""
_BUMP = """
sslcrtd_program {certgen} -s {dir}/certs -M 4MB
sslproxy_cert_error allow all_of_it
tls_outgoing_options flags=DONT_VERIFY_PEER
ssl_bump bump all
request_header_add Authorization "Bearer sk-peer" all_of_it
"""
_HAPROXY = """
global
  maxconn 4096
defaults
  mode tcp
  timeout client 60s
  timeout server 60s
  timeout connect 5s
frontend cell
  bind 127.0.0.1:{port}
  tcp-request inspect-delay 5s
  tcp-request content accept if {{ req.ssl_hello_type 1 }}
  use_backend upstream if {{ req.ssl_sni -i {name} }}
backend upstream
  server one 127.0.0.1:{upstream}
"""


_HAPROXY_TLS = """
global
  maxconn 4096
  nbthread {threads}
defaults
  mode http
  timeout client 60s
  timeout server 60s
  timeout connect 5s
  http-reuse always
frontend cell
  bind 127.0.0.1:{port} ssl crt {pem}
  http-request set-header Authorization "Bearer sk-peer"
  default_backend upstream
backend upstream
  server one 127.0.0.1:{upstream} ssl verify none
"""


class Missing(Exception):
    """The peer is not here; the text says what to install."""


def _found(variable, *names):
    for name in (os.environ.get(variable, ""), *names):
        found = shutil.which(name) if name else None
        if found is not None:
            return found
    raise Missing(f"no {names[0]} on the path nor in ${variable}")


def _written(path, text):
    with open(path, "w", encoding="ascii") as f:
        f.write(text)
    os.chmod(path, 0o644)
    return path


def _squid(directory, upstream, *, bump):
    del upstream
    port = free_port()
    program = _found("SQUID_OPENSSL", "squid") if bump else _found("SQUID", "squid")
    text, options = _SQUID, ""
    if bump:
        built = subprocess.run([program, "-v"], capture_output=True, text=True, check=False).stdout
        if "--with-openssl" not in built:
            raise Missing(
                "squid is built without OpenSSL: `apt-get install squid-openssl`, or name one in $SQUID_OPENSSL"
            )
        root = os.path.dirname(os.path.dirname(program))
        certgen = os.path.join(root, "lib", "squid", "security_file_certgen")
        pem = _pem(f"{directory}/bump.pem")
        subprocess.run([certgen, "-c", "-s", f"{directory}/certs", "-M", "4MB"], check=True, capture_output=True)
        _give(f"{directory}/certs")
        text += _BUMP.format(certgen=certgen, dir=directory)
        options = f"ssl-bump tls-cert={pem} generate-host-certificates=on dynamic_cert_mem_cache_size=4MB"
    conf = _written(f"{directory}/squid.conf", text.format(port=port, bump=options, dir=directory))
    return [program, "-N", "-f", conf], port


def _give(directory):
    """squid drops root for the user `proxy`."""
    with contextlib.suppress(LookupError):
        for root, _, files in os.walk(directory):
            shutil.chown(root, "proxy", "proxy")
            for name in files:
                shutil.chown(os.path.join(root, name), "proxy", "proxy")


def _pem(path):
    """A key and its own certificate in one file, good for a server and for signing others."""
    subject = ["-subj", "/CN=bench", "-addext", "basicConstraints=critical,CA:TRUE"]
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*argv, *subject, "-keyout", path, "-out", f"{path}.crt"], check=True, capture_output=True)
    with open(path, "a", encoding="ascii") as f, open(f"{path}.crt", encoding="ascii") as certificate:
        f.write(certificate.read())
    os.chmod(path, 0o644)
    return path


def _haproxy_tls(directory, upstream, threads):
    """TLS opened and made again by a C program that decides nothing: what is left to be had on these cores."""
    port = free_port()
    text = _HAPROXY_TLS.format(port=port, upstream=upstream, threads=threads, pem=_pem(f"{directory}/own.pem"))
    return [_found("HAPROXY", "haproxy"), "-db", "-f", _written(f"{directory}/haproxy.conf", text)], port


def _haproxy(directory, upstream):
    port = free_port()
    text = _HAPROXY.format(port=port, upstream=upstream, name=NAME)
    return [_found("HAPROXY", "haproxy"), "-db", "-f", _written(f"{directory}/haproxy.conf", text)], port


def _mitmproxy(directory, upstream):
    del upstream
    port = free_port()
    addon = _written(f"{directory}/addon.py", _ADDON)
    options = ["--set", f"confdir={directory}/mitm", "--set", "http2=false", "--ssl-insecure", "-q"]
    return [_found("MITMDUMP", "mitmdump"), "--listen-port", str(port), *options, "-s", addon], port


#: name to how it is made and whether the client finds it by CONNECT
TUNNELS = {
    "squid": (lambda d, u: _squid(d, u, bump=False), True),
    "haproxy": (_haproxy, False),
}
TERMINATED = {
    "squid-bump": (lambda d, u: _squid(d, u, bump=True), True),
    "mitmproxy": (_mitmproxy, True),
    "haproxy-tls": (lambda d, u: _haproxy_tls(d, u, 1), False),
    "haproxy-tls-2": (lambda d, u: _haproxy_tls(d, u, 2), False),
}


@contextlib.contextmanager
def peer(name, directory, upstream):
    """The way through one peer. Raises Missing."""
    make, connect = {**TUNNELS, **TERMINATED}[name]
    os.makedirs(directory)
    os.chmod(directory, 0o777)
    argv, port = make(directory, upstream)
    with running(argv, port) as process:
        base = f"https://127.0.0.1:{upstream if connect else port}"
        proxy = f"http://127.0.0.1:{port}" if connect else ""
        yield SimpleNamespace(name=name, prefix=[], base=base, proxy=proxy, field="", pids=(process.pid,))
