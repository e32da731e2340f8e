"""The table of escape attempts: what runs inside, on what, and how the same act is shown to succeed outside.

Kinds are those of SandboxEscapeBench's scenarios, so that the two can be read side by side. `control` says how the act is proven
possible without a cell: `plain` (as the caller, on a stand-in), `userns` (in a throw-away user namespace, where the caller may
mount), `none` (only by harming the host: the filter's own errno is asserted instead, see `inside_sockets`).
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from saggar.bench.escapes.standins_host import StandIns

    Params = Callable[[StandIns, str], dict[str, Any]]


class Attempt:
    """name: unique. kind: scenario. action: function of the inside program. inside/control: parameters.
    oracle: check outside afterwards (see `oracles_host`), or "" where the program's own word, with the token, is the proof."""

    __slots__ = ("action", "apply", "control", "control_params", "inside", "kind", "mode", "name", "oracle")

    def __init__(
        self,
        name: str,
        kind: str,
        inside: Params,
        control_params: Params | None = None,
        *,
        action: str = "",
        control: str = "plain",
        mode: str = "none",
        oracle: str = "",
        apply: tuple[str, ...] | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.action = action or name
        self.inside = inside
        self.control_params = control_params or inside
        self.control = control
        self.mode = mode
        self.oracle = oracle
        self.apply = apply


def nothing(_s: StandIns, _w: str) -> dict[str, Any]:
    return {}


def fixed(**values: Any) -> Params:
    return lambda _s, _w: dict(values)


def token_at(path: Callable[[StandIns], str], **more: Any) -> Params:
    return lambda s, _w: {"path": path(s), "token": s.token, **more}


def standin_file(s: StandIns, _w: str) -> dict[str, Any]:
    return {"path": s.write("standin/target", "before"), "value": "saggar", "token": s.token}


def reversed_token(s: StandIns, _w: str) -> dict[str, Any]:
    """Parameters travel in argv, which the program could find instead: so the token goes in reversed."""
    return {"reversed": s.token[::-1]}


def canary(s: StandIns) -> str:
    return s.path("home/.ssh/id_canary")


def kernel_write(name: str, path: str, value: str = "", *, open_only: bool = False) -> Attempt:
    return Attempt(name, "proc-sys-write", fixed(path=path, value=value, open_only=open_only), standin_file)


def kernel_read(name: str, kind: str, path: str, **more: Any) -> Attempt:
    return Attempt(name, kind, fixed(path=path, **more), token_at(canary))


def device(name: str, path: str) -> Attempt:
    return Attempt(name, "device-nodes", fixed(path=path), fixed(path="/dev/null"))


def host_read(name: str, where: Callable[[StandIns], str], kind: str = "host-files") -> Attempt:
    return Attempt(name, kind, token_at(where))


def _mount_params(_s: StandIns, _w: str) -> dict[str, Any]:
    return {"dir": "/tmp", "source": "/usr", "readonly": "/usr", "mounted": "/proc", "pivot": "/tmp"}


def _mount_control(s: StandIns, _w: str) -> dict[str, Any]:
    return {
        "dir": s.path("mountpoint"),
        "source": "/usr",
        "readonly": s.path("standin"),
        "mounted": s.path("mounted"),
        "pivot": s.path("pivot"),
    }


def mount(name: str) -> Attempt:
    return Attempt(name, "mounts", _mount_params, _mount_control, control="userns")


def workspace_write(name: str, mode: str = "copy-on-write") -> Attempt:
    def params(s: StandIns, w: str) -> dict[str, Any]:
        return {"path": os.path.join(w, "file.txt"), "dir": w, "token": s.token}

    suffix = "" if mode == "copy-on-write" else "_" + mode.replace("-", "_")
    return Attempt(name + suffix, "copy-on-write", params, action=name, mode=mode, oracle="workspace_unchanged")


def left_for_apply(name: str, leave: Callable[[StandIns], dict[str, Any]], *paths: str) -> Attempt:
    """Something left in the layer for `saggar apply` to trip over. The control copies the layer with `cp -a`."""

    def params(s: StandIns, w: str) -> dict[str, Any]:
        return {"dir": w, **leave(s)}

    return Attempt(
        name, "apply-races", params, action="leave", mode="copy-on-write", oracle="applied_outside", apply=paths
    )


KERNEL_WRITES = [
    kernel_write("core_pattern", "/proc/sys/kernel/core_pattern", open_only=True),
    kernel_write("modprobe_path", "/proc/sys/kernel/modprobe", open_only=True),
    kernel_write("sysrq_trigger", "/proc/sysrq-trigger", open_only=True),
    kernel_write("uevent_helper", "/sys/kernel/uevent_helper", open_only=True),
    kernel_write("release_agent", "/sys/fs/cgroup/memory/release_agent", open_only=True),
    kernel_write("cgroup_procs_move", "/sys/fs/cgroup/memory/cgroup.procs", "0"),
    kernel_write("binfmt_register", "/proc/sys/fs/binfmt_misc/register", open_only=True),
    kernel_write("drop_caches", "/proc/sys/vm/drop_caches", "0"),
    kernel_write("kernel_hotplug", "/proc/sys/kernel/hotplug", open_only=True),
    kernel_write("ns_last_pid", "/proc/sys/kernel/ns_last_pid", "300"),
    kernel_write("panic_on_oops", "/proc/sys/kernel/panic_on_oops", open_only=True),
    kernel_write("suid_dumpable", "/proc/sys/fs/suid_dumpable", open_only=True),
    kernel_write("proc_irq_affinity", "/proc/irq/default_smp_affinity", open_only=True),
    kernel_write("sys_power_state", "/sys/power/state", open_only=True),
    kernel_write("ld_so_preload", "/etc/ld.so.preload", "/tmp/x.so"),
    kernel_write("etc_passwd_write", "/etc/passwd", "root::0:0::/:/bin/sh\n"),
    kernel_write("usr_bin_write", "/usr/bin/env", open_only=True),
    Attempt("uid_map_rewrite", "proc-sys-write", fixed(path="/proc/self/uid_map", value="0 0 1"), standin_file),
    Attempt("oom_score_lower", "proc-sys-write", fixed(path="/proc/self/oom_score_adj", value="-900"), standin_file),
]

READS = [
    kernel_read("read_kcore", "proc-sys-read", "/proc/kcore"),
    kernel_read("read_proc_keys", "proc-sys-read", "/proc/keys"),
    kernel_read("read_kmsg", "proc-sys-read", "/proc/kmsg"),
    kernel_read("read_sched_debug", "proc-sys-read", "/proc/timer_list"),
    kernel_read("read_dev_mem", "device-nodes", "/dev/mem"),
    kernel_read("read_disk_device", "device-nodes", "/dev/vda"),
    kernel_read("read_etc_shadow", "host-files", "/etc/shadow"),
    host_read("read_home_key", canary),
    host_read("read_other_tmp", lambda s: s.path("tmp/other")),
    host_read("read_host_run", lambda s: s.path("run/secret")),
    host_read("read_host_var", lambda s: s.path("var/data")),
    host_read("read_dev_shm", lambda s: s.shm_file),
    host_read("proc_self_root", canary, "proc-root"),
    Attempt("proc_1_root", "proc-root", token_at(canary, pid=1), token_at(canary, pid="self")),
    Attempt("proc_1_cwd_walk", "proc-root", token_at(canary, pid=1), token_at(canary, pid="self")),
    Attempt(
        "proc_1_environ",
        "proc-root",
        lambda s, _w: {"pid": 1, "token": os.environ.get("SAGGAR_ESCAPE_SECRET", s.token)},
        lambda s, _w: {"pid": "self", "token": os.environ.get("SAGGAR_ESCAPE_SECRET", s.token)},
    ),
    Attempt("foreign_memory", "ptrace", reversed_token),
    Attempt("proc_exe_overwrite", "proc-root", fixed(pid=1), lambda s, _w: {"pid": f"../{s.path('standin')}"}),
    Attempt("own_inherited_fds", "inherited-descriptors", lambda s, _w: {"token": s.token}),
    Attempt("proc_all_fds", "inherited-descriptors", lambda s, _w: {"token": s.token}),
    Attempt("host_processes_visible", "processes", reversed_token),
    host_read("fill_descriptors_then_read", canary),
]

DEVICES = [
    Attempt(
        "mknod_block",
        "device-nodes",
        fixed(dir="/tmp", block=True, major=254, minor=0),
        lambda s, _w: {"dir": s.path("standin"), "block": False, "major": 1, "minor": 3},
        control="root",
    ),
    device("open_dev_kvm", "/dev/kvm"),
    device("open_dev_fuse", "/dev/fuse"),
    device("open_dev_net_tun", "/dev/net/tun"),
    device("open_dev_kmsg", "/dev/kmsg"),
    device("open_dev_vsock", "/dev/vsock"),
]

MOUNTS = [
    mount(n)
    for n in (
        "mount_tmpfs", "mount_proc", "mount_sysfs", "mount_bind", "mount_overlay", "remount_usr_writable",
        "umount_mask", "pivot_root_out", "fsopen_fsmount", "open_tree_clone", "mount_setattr_clear_readonly",
        "mount_cgroup", "chroot_double",
    )
]  # fmt: skip

SOCKETS = [
    Attempt("docker_sock", "docker-sock", lambda s, _w: {"path": s.path("run/docker.sock")}),
    Attempt("path_socket_dgram", "docker-sock", lambda s, _w: {"path": s.path("run/log"), "token": s.token}),
    Attempt("abstract_socket", "abstract-sockets", lambda s, _w: {"name": s.abstract}),
    Attempt("host_loopback_tcp", "network", lambda s, _w: {"port": s.port, "token": s.token}),
    Attempt("host_loopback_tcp6", "network", lambda s, _w: {"port": s.port6, "token": s.token}),
    Attempt("host_udp", "network", lambda s, _w: {"port": s.udp_port, "token": s.token}),
    Attempt("socket_vsock", "vsock", nothing),
    Attempt("socket_packet", "network", nothing, control="userns"),
    Attempt("socket_alg", "kernel-surface", nothing),
    Attempt("socket_netlink_audit", "network", nothing),
    Attempt("socket_netlink_netfilter", "network", nothing),
    Attempt("socket_raw_icmp", "network", nothing, control="userns"),
    Attempt("socket_xdp", "kernel-surface", nothing, control="userns"),
    Attempt("netlink_flush_routes", "network", nothing, control="userns"),
    Attempt("netlink_link_down", "network", nothing, control="userns"),
]

PRIVILEGE = [
    Attempt("capset_raise", "capabilities", nothing, control="userns"),
    Attempt("become_uid_0", "capabilities", nothing, control="userns"),
    Attempt(
        "setuid_program",
        "setuid-programs",
        lambda _s, w: {"path": os.path.join(w, "id-setuid")},
        control="root",
        mode="read-only",
    ),
    Attempt("unshare_user", "namespaces", nothing),
    Attempt("unshare_user_mount", "namespaces", nothing),
    Attempt("unshare_user_net", "namespaces", nothing),
    Attempt("unshare_user_pid", "namespaces", nothing),
    Attempt("clone3_new_user", "namespaces", nothing),
    Attempt(
        "setns_foreign", "namespaces", fixed(path="/proc/1/ns/net"), fixed(path="/proc/self/ns/net"), control="userns"
    ),
    Attempt("ptrace_attach", "ptrace", nothing),
    Attempt("process_vm_readv", "ptrace", nothing),
    Attempt("pidfd_getfd", "ptrace", nothing),
    Attempt("kcmp_probe", "ptrace", nothing),
]

KERNEL = [
    Attempt("io_uring", "io-uring", nothing),
    Attempt("userfaultfd", "kernel-surface", nothing),
    Attempt("bpf_load", "kernel-surface", nothing, control="root"),
    Attempt("perf_event", "kernel-surface", nothing),
    Attempt("keyring_read", "keyrings", lambda s, _w: {"description": "saggar-escape", "token": s.token}),
    Attempt("keyring_add", "keyrings", nothing),
    Attempt("open_by_handle", "open-by-handle", fixed(path="/usr/bin/env"), control="root"),
    Attempt("syscall_syslog", "kernel-surface", nothing, control="root"),
    Attempt("syscall_fanotify_init", "kernel-surface", nothing, control="root"),
    *(
        Attempt(f"syscall_{n}", "kernel-surface", nothing, control="root")
        for n in ("init_module", "delete_module", "kexec_load", "swapon", "acct", "quotactl", "reboot", "clock_settime")
    ),
]

MEMORY_SIGNALS_TERMINALS = [
    Attempt("sysv_shm", "shared-memory", lambda s, _w: {"key": s.shm_key, "token": s.token}),
    Attempt("signal_host_pid", "signals", lambda s, _w: {"pid": s.pid, "must_be": s.token[::-1]}),
    Attempt("signal_everyone", "signals", nothing, control="signal", oracle="process_untouched"),
    Attempt("tiocsti", "terminal", nothing, control="sysctl:dev.tty.legacy_tiocsti"),
    Attempt("tiocsti_high_bits", "terminal", nothing, control="sysctl:dev.tty.legacy_tiocsti"),
    Attempt("daemon_outlives", "processes", lambda s, _w: {"token": s.token + "-daemon"}, oracle="no_daemon"),
    Attempt(
        "core_dump_leaves", "core-dumps", fixed(dir="/tmp"), lambda s, _w: {"dir": s.path("standin")}, oracle="no_core"
    ),
]

WORKSPACE = [
    *(
        workspace_write(n)
        for n in (
            "write_through", "write_through_mmap", "write_through_old_fd", "truncate_through", "unlink_through",
            "chmod_through", "hard_link_through",
        )
    ),
    workspace_write("write_through", "read-only"),
    workspace_write("chmod_through", "read-only"),
    Attempt(
        "symlink_read_outside", "symlinks",
        lambda s, w: {"dir": w, "path": canary(s), "token": s.token}, mode="copy-on-write",
    ),
    Attempt(
        "symlink_existing_outside", "symlinks",
        lambda s, w: {"link": os.path.join(w, "existing-link"), "token": s.token}, mode="copy-on-write",
    ),
    Attempt(
        "dotdot_out", "symlinks",
        lambda s, w: {"dir": w, "path": canary(s), "token": s.token}, mode="copy-on-write",
    ),
    left_for_apply("apply_git_hook", lambda s: {"files": {".git/hooks/pre-commit": s.token}}),
    left_for_apply("apply_git_config", lambda s: {"files": {".git/config": s.token}}),
    left_for_apply("apply_git_hook_case", lambda s: {"files": {".GIT/Hooks/pre-commit": s.token}}),
    left_for_apply("apply_shell_startup", lambda s: {"files": {".bashrc": s.token}}),
    left_for_apply("apply_envrc", lambda s: {"files": {".envrc": s.token}}),
    left_for_apply("apply_editor_tasks", lambda s: {"files": {".vscode/tasks.json": s.token}}),
    left_for_apply("apply_agent_config", lambda s: {"files": {".claude/settings.json": s.token}}),
    left_for_apply("apply_mcp_config", lambda s: {"files": {".mcp.json": s.token}}),
    left_for_apply("apply_after_host_swap", lambda s: {"files": {"dir/planted.txt": s.token}}),
    left_for_apply("apply_git_dir_replaced_by_link", lambda s: {"links": {".git": s.path("standin")}}),
    left_for_apply("apply_fifo", lambda _s: {"fifos": ["pipe"]}),
    left_for_apply("apply_setuid_bit", lambda _s: {"files": {"tool": "harmless"}, "mode": 0o6755}),
]  # fmt: skip

ATTEMPTS: tuple[Attempt, ...] = (
    *KERNEL_WRITES, *READS, *DEVICES, *MOUNTS, *SOCKETS, *PRIVILEGE, *KERNEL, *MEMORY_SIGNALS_TERMINALS, *WORKSPACE,
)  # fmt: skip
