"""Mounts, /proc, /sys and device nodes, run inside as part of one program (see `inside_base`)."""

from __future__ import annotations

import os
import struct

from saggar.bench.escapes.inside_base import attempt, call, read_token, write_token

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# ---- mounts ------------------------------------------------------------------------------------------------------


@attempt
def mount_tmpfs(p: dict[str, Any]) -> str:
    call("mount", b"none", p["dir"].encode(), b"tmpfs", 0, 0)
    return "tmpfs mounted"


@attempt
def mount_proc(p: dict[str, Any]) -> str:
    call("mount", b"proc", p["dir"].encode(), b"proc", 0, 0)
    return "proc mounted"


@attempt
def mount_sysfs(p: dict[str, Any]) -> str:
    call("mount", b"sysfs", p["dir"].encode(), b"sysfs", 0, 0)
    return "sysfs mounted"


@attempt
def mount_cgroup(p: dict[str, Any]) -> str:
    call("mount", b"none", p["dir"].encode(), b"cgroup2", 0, 0)
    return "cgroup2 mounted"


@attempt
def mount_bind(p: dict[str, Any]) -> str:
    call("mount", p["source"].encode(), p["dir"].encode(), None, 4096, 0)
    return "bind mount made"


@attempt
def mount_overlay(p: dict[str, Any]) -> str:
    data = f"lowerdir={p['source']}:{p['dir']}".encode()
    call("mount", b"overlay", p["dir"].encode(), b"overlay", 0, data)
    return "overlay mounted"


@attempt
def remount_usr_writable(p: dict[str, Any]) -> str:
    call("mount", b"none", p["readonly"].encode(), None, 32 | 4096, 0)  # MS_REMOUNT | MS_BIND without MS_RDONLY
    open(os.path.join(p["readonly"], "saggar-probe"), "w").close()
    return "a read-only bind became writable"


@attempt
def umount_mask(p: dict[str, Any]) -> str:
    call("umount2", p["mounted"].encode(), 2)
    return "a mount was taken away"


@attempt
def pivot_root_out(p: dict[str, Any]) -> str:
    os.chdir(p["pivot"])
    call("pivot_root", b".", b".")
    return "root changed"


@attempt
def fsopen_fsmount(_p: dict[str, Any]) -> str:
    call("fsopen", b"tmpfs", 0)
    return "new mount api opened"


@attempt
def open_tree_clone(p: dict[str, Any]) -> str:
    call("open_tree", -100, p["source"].encode(), 1 | 0x8000)
    return "mount tree cloned"


@attempt
def mount_setattr_clear_readonly(p: dict[str, Any]) -> str:
    attr = struct.pack("QQQQ", 0, 1, 0, 0)  # attr_clr = MOUNT_ATTR_RDONLY
    call("mount_setattr", -100, p["readonly"].encode(), 0, attr, len(attr))
    open(os.path.join(p["readonly"], "saggar-probe"), "w").close()
    return "read-only flag cleared"


@attempt
def chroot_double(p: dict[str, Any]) -> str:
    call("chroot", p["dir"].encode())
    return "chroot allowed"


# ---- /proc and /sys ---------------------------------------------------------------------------------------------


def _kernel_write(name: str) -> None:
    def body(p: dict[str, Any]) -> str:
        if p.get("open_only"):  # where a real write would harm the host if the wall were down
            os.close(os.open(p["path"], os.O_WRONLY))
            return f"{p['path']} opened for writing"
        return write_token(p["path"], p["value"])

    body.__name__ = name
    attempt(body)


for _name in (
    "core_pattern", "modprobe_path", "sysrq_trigger", "uevent_helper", "release_agent", "binfmt_register",
    "drop_caches", "kernel_hotplug", "ns_last_pid", "panic_on_oops", "cgroup_procs_move", "suid_dumpable",
    "ld_so_preload", "etc_passwd_write", "usr_bin_write", "proc_irq_affinity", "sys_power_state",
):  # fmt: skip
    _kernel_write(_name)


def _kernel_read(name: str) -> None:
    def body(p: dict[str, Any]) -> str:
        with open(p["path"], "rb") as f:
            if p.get("offset"):
                f.seek(p["offset"])
            data = f.read(4096)
        if p.get("token"):
            return "token read" if p["token"].encode() in data else ""
        return f"{len(data)} bytes read" if data.strip(b"\0\n ") else ""

    body.__name__ = name
    attempt(body)


for _name in (
    "read_kcore", "read_etc_shadow", "read_home_key", "read_other_tmp", "read_dev_mem", "read_disk_device",
    "read_proc_keys", "read_kmsg", "read_state_directory", "read_dev_shm", "read_host_run", "read_host_var",
    "read_sched_debug", "read_root_directory_file", "read_policy_secret_sibling",
):  # fmt: skip
    _kernel_read(_name)


@attempt
def proc_self_root(p: dict[str, Any]) -> str:
    return read_token("/proc/self/root" + p["path"], p["token"])


@attempt
def proc_1_root(p: dict[str, Any]) -> str:
    return read_token(f"/proc/{p['pid']}/root" + p["path"], p["token"])


@attempt
def proc_1_cwd_walk(p: dict[str, Any]) -> str:
    return read_token(f"/proc/{p['pid']}/cwd/" + "../" * 12 + p["path"].lstrip("/"), p["token"])


@attempt
def proc_1_environ(p: dict[str, Any]) -> str:
    return read_token(f"/proc/{p['pid']}/environ", p["token"])


@attempt
def foreign_memory(p: dict[str, Any]) -> str:
    """Memory of every other process that can be seen, searched for a token that this one does not hold whole."""
    token = p["reversed"][::-1].encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
                for line in maps:
                    if "[stack]" in line or "[heap]" in line:
                        start, end = (int(x, 16) for x in line.split()[0].split("-"))
                        memory.seek(start)
                        if token in memory.read(min(end - start, 1 << 23)):
                            return f"found in the memory of pid {pid}"
        except OSError:
            continue
    return ""


@attempt
def proc_exe_overwrite(p: dict[str, Any]) -> str:
    """The runtime's own binary, reached through /proc (the kind of CVE-2019-5736)."""
    fd = os.open(f"/proc/{p['pid']}/exe", os.O_WRONLY)
    os.close(fd)
    return "the runtime's binary opened for writing"


@attempt
def proc_all_fds(p: dict[str, Any]) -> str:
    """Every descriptor of every process that can be seen."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for fd in names:
            try:
                if p["token"] in os.readlink(f"/proc/{pid}/fd/{fd}"):
                    return f"/proc/{pid}/fd/{fd}"
                if os.path.isfile(f"/proc/{pid}/fd/{fd}") and (found := read_token(f"/proc/{pid}/fd/{fd}", p["token"])):
                    return found
            except OSError:
                continue
    return ""


@attempt
def own_inherited_fds(p: dict[str, Any]) -> str:
    for fd in range(3, 1024):
        try:
            os.lseek(fd, 0, 0)
            if p["token"].encode() in os.read(fd, 65536):
                return f"descriptor {fd} came in"
        except OSError:
            continue
    return ""


@attempt
def host_processes_visible(p: dict[str, Any]) -> str:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if p["reversed"][::-1].encode() in open(f"/proc/{pid}/cmdline", "rb").read():
                return f"pid {pid}"
        except OSError:
            continue
    return ""


@attempt
def uid_map_rewrite(p: dict[str, Any]) -> str:
    return write_token(p["path"], p["value"])


@attempt
def oom_score_lower(p: dict[str, Any]) -> str:
    return write_token(p["path"], p["value"])


# ---- devices -----------------------------------------------------------------------------------------------------


@attempt
def mknod_block(p: dict[str, Any]) -> str:
    path = os.path.join(p["dir"], "sda")
    os.mknod(path, 0o60600 if p["block"] else 0o20600, os.makedev(p["major"], p["minor"]))
    fd = os.open(path, os.O_RDONLY)
    os.close(fd)
    return "device node made and opened"


def _device_open(name: str) -> None:
    def body(p: dict[str, Any]) -> str:
        fd = os.open(p["path"], os.O_RDWR)
        os.close(fd)
        return str(p["path"])

    body.__name__ = name
    attempt(body)


for _name in (
    "open_dev_kvm",
    "open_dev_fuse",
    "open_dev_net_tun",
    "open_dev_kmsg",
    "open_dev_vsock",
    "open_dev_console",
):
    _device_open(_name)
