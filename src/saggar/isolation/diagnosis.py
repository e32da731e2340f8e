"""From a step that failed and what is known of the host to a cause and an exact remedy; pure, so that `saggar run` and
`saggar doctor` say the same.

I1  A cause names what was tried and what the kernel said; the host's settings only choose among explanations.
I2  A remedy can be typed. One that weakens something else says what.
"""

from __future__ import annotations

from saggar.core.decision import Frozen
from saggar.core.errors import Unenforceable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

EPERM, EACCES, EINVAL, ENOSPC, ENODEV, ENOSYS = 1, 13, 22, 28, 19, 38

# The steps of a cell that need a new namespace or a capability in one.
_NAMESPACE_STEPS = ("identity", "namespaces", "network", "listeners", "stage", "bubblewrap", "userns")


class Facts(Frozen):
    """What the host says of itself. Settings are the text of the file, "" where there is none.

    apparmor: `kernel.apparmor_restrict_unprivileged_userns`. clone: `kernel.unprivileged_userns_clone` (Debian).
    user_max, net_max: `user.max_user_namespaces`, `user.max_net_namespaces`. filtered: this process is under a seccomp filter.
    container: `docker`, `podman`, `kubernetes`, … or "". capable: has CAP_SYS_ADMIN. python: the interpreter's own path.
    """

    __slots__ = (
        "apparmor",
        "capable",
        "clone",
        "container",
        "filtered",
        "kernel",
        "net_max",
        "python",
        "uid",
        "user_max",
    )
    apparmor: str
    capable: bool
    clone: str
    container: str
    filtered: bool
    kernel: str
    net_max: str
    python: str
    uid: int
    user_max: str

    def __init__(
        self,
        *,
        apparmor: str = "",
        capable: bool = False,
        clone: str = "",
        container: str = "",
        filtered: bool = False,
        kernel: str = "",
        net_max: str = "",
        python: str = "",
        uid: int = 1000,
        user_max: str = "",
    ) -> None:
        self._set(
            apparmor=apparmor,
            capable=capable,
            clone=clone,
            container=container,
            filtered=filtered,
            kernel=kernel,
            net_max=net_max,
            python=python,
            uid=uid,
            user_max=user_max,
        )


class Diagnosis(Frozen):
    """cause and remedy of one failure."""

    __slots__ = ("cause", "remedy")
    cause: str
    remedy: str

    def __init__(self, cause: str, remedy: str) -> None:
        self._set(cause=cause, remedy=remedy)


def diagnose(step: str, errno: int, message: str, facts: Facts) -> Diagnosis:
    """step: the launcher's word for where it was (`child_host`), or a probe's. errno: 0 where there was none."""
    if step in _NAMESPACE_STEPS:
        # bubblewrap says what it could not do in words only
        found = _namespaces(EPERM if step == "bubblewrap" and errno == 0 else errno, message, facts)
        if found is not None:
            return found
    said = f"`{step}`: {message}" if message else f"`{step}` failed"
    return Diagnosis(said, "run `saggar doctor` and send us what it prints, with this line")


def _namespaces(errno: int, message: str, facts: Facts) -> Diagnosis | None:
    said = message or "the kernel refused"
    if errno == ENOSPC:
        name = "user.max_net_namespaces" if facts.net_max == "0" else "user.max_user_namespaces"
        return Diagnosis(
            f"the limit `{name}` is reached or 0 ({said})",
            f"as root: `sysctl -w {name}=15000`, and the same line in /etc/sysctl.d/90-saggar.conf to keep it",
        )
    if errno == ENOSYS:
        return Diagnosis(
            f"this kernel was built without namespaces ({said})", "use a kernel with CONFIG_USER_NS and CONFIG_NET_NS"
        )
    if errno not in (EPERM, EACCES, EINVAL):
        return None
    if facts.uid == 0 and not facts.capable and facts.container:
        return Diagnosis(
            f"root in a {facts.container} container, without CAP_SYS_ADMIN ({said})",
            "run saggar as an ordinary user in the container, and " + _container_remedy(facts.container),
        )
    if facts.clone == "0":
        return Diagnosis(
            f"`kernel.unprivileged_userns_clone` is 0 ({said})",
            "as root: `sysctl -w kernel.unprivileged_userns_clone=1`, and the same line in /etc/sysctl.d/90-saggar.conf",
        )
    if facts.user_max == "0":
        return Diagnosis(
            f"`user.max_user_namespaces` is 0 ({said})",
            "as root: `sysctl -w user.max_user_namespaces=15000`, and the same line in /etc/sysctl.d/90-saggar.conf",
        )
    if facts.apparmor == "1" and facts.uid != 0:
        return Diagnosis(
            f"AppArmor takes the capabilities of user namespaces that unprofiled programs make"
            f" (`kernel.apparmor_restrict_unprivileged_userns` is 1, as on Ubuntu 23.10 and later; {said})",
            apparmor_remedy(facts.python),
        )
    if facts.container or facts.filtered:
        where = f"a {facts.container} container's" if facts.container else "a seccomp"
        return Diagnosis(
            f"{where} filter or profile refuses new namespaces ({said})", _container_remedy(facts.container)
        )
    return None


def _container_remedy(container: str) -> str:
    unmask = "--security-opt unmask=ALL" if container == "podman" else "--security-opt systempaths=unconfined"
    if container == "kubernetes":
        return (
            "set `securityContext.seccompProfile.type: Unconfined`, `procMount: Unmasked` and `hostUsers: false` on the pod"
            " (this takes the container's own wall away in favour of the cell's)"
        )
    return (
        f"start the container with `--security-opt seccomp=unconfined --security-opt apparmor=unconfined {unmask}`"
        " (this takes the container's own wall away in favour of the cell's), or run saggar on the host"
    )


def apparmor_profile(python: str) -> str:
    """The profile that lets this interpreter make user namespaces and changes nothing else about it.

    bubblewrap needs none: started by the interpreter it stays under the interpreter's (tried on Ubuntu 24.04's kernel).
    """
    return (
        "abi <abi/4.0>,\ninclude <tunables/global>\n\n"
        f'profile saggar-python "{python}" flags=(unconfined) {{\n'
        "  userns,\n  include if exists <local/saggar-python>\n}\n"
    )


def apparmor_remedy(python: str) -> str:
    shared = python.startswith(("/usr/", "/bin/"))
    warning = (
        "\n(this profile stands for every program that this interpreter runs; `python3 -m venv --copies DIR` gives Saggar an"
        " interpreter of its own to name instead)"
        if shared
        else ""
    )
    return (
        "as root, once: write this to /etc/apparmor.d/saggar, then `apparmor_parser -r /etc/apparmor.d/saggar`\n\n"
        f"{apparmor_profile(python)}{warning}"
    )


def explain(failure: Mapping[str, Any], facts: Facts) -> Unenforceable:
    """The launcher's `failed` message as an error. failure: step, errno, message, and cause and remedy where it knows them."""
    step = str(failure.get("step", ""))
    message = str(failure.get("message", ""))
    if failure.get("cause"):
        return Unenforceable(message, cause=str(failure["cause"]), remedy=str(failure.get("remedy", "")))
    found = diagnose(step, int(failure.get("errno") or 0), message, facts)
    return Unenforceable(f"the cell could not be made ({step})", cause=found.cause, remedy=found.remedy)
