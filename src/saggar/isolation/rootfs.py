"""What a cell shows of the system: program directories, a reduced /etc, and files of our own making.

I1  /etc is an allow list: what no entry names is not there. No entry may hold a secret or name the host: no `hostname`,
    `machine-id`, `resolv.conf`, `shadow`, `ssh`, `fstab`, and no package manager's configuration (it may carry credentials).
I2  `passwd`, `group`, `hosts`, `resolv.conf` and `nsswitch.conf` are ours, the same on every host. `hosts` depends on the policy alone.
"""

from __future__ import annotations

from saggar.isolation.bwrap_argv import GID, HOME, HOSTNAME, UID, USER

RESOLVER = "198.19.255.53"

#: Top directories of the system; a link on the host (merged /usr) stays a link inside.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

#: Directories and files of /etc that programs need to start or to speak TLS; read-only, where the host has them.
ETC = (
    "alternatives",  # Debian's links from names to programs
    "ca-certificates",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "gnutls",
    "java",
    "ld.so.conf",
    "ld.so.conf.d",
    "ld.so.cache",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "magic.mime",
    "maven/m2.conf",  # where Maven finds itself; its settings.xml may hold passwords
    "maven/logging/simplelogger.properties",
    "mime.types",
    "os-release",
    "perl",
    "pki/ca-trust",
    "pki/java",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "protocols",
    "rpc",
    "services",
    "shells",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
    "xml",
)
#: Names in /etc that stand for a version: `java-17-openjdk`, `python3.11`.
ETC_VERSIONED = ("java-", "python")


def accounts(uid: int, gid: int) -> dict[str, bytes]:
    """The cell's own /etc/passwd and /etc/group, in which its user is `agent` whatever the numbers are."""
    root = "root:x:0:0:root:/root:/usr/sbin/nologin\n"
    nobody = "nobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    return {
        "/etc/passwd": f"{root}{USER}:x:{uid}:{gid}:agent:{HOME}:/bin/sh\n{nobody}".encode(),
        "/etc/group": f"root:x:0:\ntty:x:5:\n{USER}:x:{gid}:\nnogroup:x:65534:\n".encode(),
    }


HOSTS_PLACE = "/etc/hosts"
#: Where it lies, in the part of the root that is each cell's own.
HOSTS_FILE = "/run/hosts"
HOSTS = f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost ip6-localhost ip6-loopback\n"
RESOLV_CONF = f"nameserver {RESOLVER}\noptions timeout:2 attempts:1\n"
NSSWITCH = "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n"

#: Our own files: (place, content).
FILES: tuple[tuple[str, bytes], ...] = (
    *accounts(UID, GID).items(),
    (HOSTS_PLACE, HOSTS.encode()),
    ("/etc/resolv.conf", RESOLV_CONF.encode()),
    ("/etc/nsswitch.conf", NSSWITCH.encode()),
)

#: (target, place) of links that every cell has. Relative: bubblewrap makes the parents of a bind before it changes root,
#: and would follow `/var/tmp` -> `/tmp` into its own root.
LINKS = (("/proc/self/mounts", "/etc/mtab"), ("../tmp", "/var/tmp"), ("../run", "/var/run"))  # noqa: S108  # inside the cell

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def environment(*, term: str = "") -> dict[str, str]:
    """The whole environment of a command whose policy says nothing."""
    return {"PATH": PATH, "HOME": HOME, "LANG": "C.UTF-8", "TERM": term or "dumb"}
