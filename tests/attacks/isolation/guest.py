"""A small virtual machine with another kernel, for what this host's kernel or cgroups cannot show.

It boots an extracted Debian kernel package under TCG (5 s to its init) from a disk image made of this host's own Python,
shell and libraries, and runs one script as root. Needs `qemu-system-x86_64`, `mkfs.ext4`, a static busybox, and
SAGGAR_GUEST_KERNEL: a directory with an unpacked `linux-image-*` package (`apt-get download`, `dpkg-deb -x`).
"""

from __future__ import annotations

import glob
import lzma
import os
import shutil
import subprocess

PROGRAMS = (
    "bash", "cat", "chmod", "chown", "cp", "dash", "dd", "dmesg", "env", "false", "grep", "head", "id", "ls", "mkdir",
    "mount", "mv", "nproc", "python3", "rm", "rmdir", "sed", "seq", "setpriv", "sh", "sleep", "sort", "stat", "sync",
    "tail", "true", "umount", "uname", "unshare",
)  # fmt: skip
MODULES = ("virtio_pci", "virtio_blk", "ext4", "overlay", "unix", "ipv6", "af_packet", "virtio_rng")

INIT = """#!/bin/busybox sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
for m in $(/bin/busybox cat /modules); do /bin/busybox insmod /m/$m; done
while [ ! -b /dev/vda ]; do /bin/busybox usleep 10000; done
/bin/busybox mount -t ext4 /dev/vda /root
exec /bin/busybox switch_root /root /init
"""

GUEST_INIT = """#!/bin/bash
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mount -t cgroup2 cgroup2 /sys/fs/cgroup
/bin/busybox ip link set lo up
bash /script >/dev/ttyS0 2>&1 </dev/null
echo "GUEST-EXIT:$?" >/dev/ttyS0
/bin/busybox poweroff -f
"""


def missing() -> str:
    """What this host lacks to run a guest, or ""."""
    for program in ("qemu-system-x86_64", "mkfs.ext4", "busybox", "cpio"):
        if not shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin"):
            return f"no {program} on this host"
    kernel = os.environ.get("SAGGAR_GUEST_KERNEL", "")
    if not glob.glob(f"{kernel}/boot/vmlinuz-*"):
        return "SAGGAR_GUEST_KERNEL does not name an unpacked linux-image package"
    if not os.path.exists("/usr/bin/python3"):
        return "no /usr/bin/python3 on this host"
    return ""


def _module(path: str) -> bytes:
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout
    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
        return file.read()


class Guest:
    """One machine. `run(script)` gives (exit code, what the script printed)."""

    def __init__(
        self, work: str, *, trees: dict[str, str], memory_mib: int = 1536, kernel: str = "", options: str = ""
    ) -> None:
        """work: an empty directory with 1 GiB free. trees: place in the guest → directory here. kernel: as
        SAGGAR_GUEST_KERNEL. options: for the kernel's command line."""
        self._work = work
        self._options = options
        self._kernel = kernel or os.environ["SAGGAR_GUEST_KERNEL"]
        self._memory = memory_mib
        self._modules = self._closure()
        self._root = f"{work}/root"
        self._fill(trees)
        self._initramfs()

    def run(self, script: str, *, timeout_s: float) -> tuple[int, str]:
        with open(f"{self._root}/script", "w", encoding="utf-8") as file:
            file.write(script)
        image = f"{self._work}/disk.img"
        if os.path.exists(image):
            os.unlink(image)
        subprocess.run(["truncate", "-s", "1500M", image], check=True)
        subprocess.run(
            ["mkfs.ext4", "-q", "-F", "-O", "^has_journal", "-d", self._root, image],
            check=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
        )  # fmt: skip
        (vmlinuz,) = glob.glob(f"{self._kernel}/boot/vmlinuz-*")
        done = subprocess.run(
            ["qemu-system-x86_64", "-M", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2",
             "-m", str(self._memory), "-nographic", "-no-reboot", "-nic", "none", "-kernel", vmlinuz,
             "-initrd", f"{self._work}/initrd", "-append", f"console=ttyS0 quiet panic=-1 edd=off {self._options}",
             "-drive", f"file={image},format=raw,if=virtio,cache=unsafe", "-device", "virtio-rng-pci"],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
        )  # fmt: skip
        text = done.stdout.decode("utf-8", "replace").replace("\r\n", "\n")
        said, mark, code = text.rpartition("GUEST-EXIT:")
        return (int(code.split()[0]) if mark else -1), said or text

    def _closure(self) -> list[str]:
        """Module files in the order in which insmod wants them."""
        found = glob.glob(f"{self._kernel}/lib/modules/*/**/*.ko*", recursive=True)
        found += glob.glob(f"{self._kernel}/usr/lib/modules/*/**/*.ko*", recursive=True)
        files = {os.path.basename(p).partition(".ko")[0].replace("-", "_"): p for p in found}
        order: list[str] = []

        def add(name: str) -> None:
            path = files.get(name)
            if path is None or path in order:
                return  # built in
            # the module's own list: NUL-separated `key=value` in .modinfo
            _, _, told = _module(path).partition(b"\0depends=")
            for need in filter(None, told.partition(b"\0")[0].decode().split(",")):
                add(need.replace("-", "_"))
            # `softdep`s of ext4 are looked for by name at mount time
            for soft in ("crc32c_generic",) if name == "ext4" else ():
                add(soft)
            order.append(path)

        for name in MODULES:
            add(name)
        return order

    def _initramfs(self) -> None:
        top = f"{self._work}/initramfs"
        for name in ("bin", "m", "root", "proc", "dev"):
            os.makedirs(f"{top}/{name}")
        shutil.copy(shutil.which("busybox") or "", f"{top}/bin/busybox")
        names = [os.path.basename(path).removesuffix(".xz").removesuffix(".zst") for path in self._modules]
        for name, path in zip(names, self._modules, strict=True):
            with open(f"{top}/m/{name}", "wb") as out:
                out.write(_module(path))
        with open(f"{top}/modules", "w", encoding="utf-8") as file:
            file.write("\n".join(names))
        with open(f"{top}/init", "w", encoding="utf-8") as file:
            file.write(INIT)
        os.chmod(f"{top}/init", 0o755)
        listing = subprocess.run(["find", "."], cwd=top, capture_output=True, check=True).stdout
        with open(f"{self._work}/initrd", "wb") as out:
            subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=top, input=listing, stdout=out, check=True)

    def _fill(self, trees: dict[str, str]) -> None:
        root = self._root
        for name in (
            "usr/bin",
            "usr/sbin",
            "usr/lib",
            "usr/lib64",
            "proc",
            "sys",
            "dev",
            "tmp",
            "run",
            "root",
            "etc",
            "mnt",
            "var/tmp",
            "home/u",
            "media",
            "srv",
            "boot",
        ):
            os.makedirs(f"{root}/{name}", exist_ok=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            os.symlink(f"usr/{name}", f"{root}/{name}")
        os.chmod(f"{root}/var/tmp", 0o1777)
        os.chown(f"{root}/home/u", 1000, 1000) if os.geteuid() == 0 else None
        programs = [p for n in PROGRAMS if (p := shutil.which(n, path="/usr/bin:/bin:/usr/sbin"))]
        for path in programs:
            self._program(path, f"/usr/bin/{os.path.basename(path)}")
        shutil.copy(shutil.which("busybox") or "", f"{root}/bin/busybox")
        stdlib = f"/usr/lib/python{self._version()}"
        shutil.copytree(
            stdlib,
            f"{root}{stdlib}",
            ignore=shutil.ignore_patterns("test", "idlelib", "__pycache__", "dist-packages", "config-*"),
        )
        for library in glob.glob(f"{root}{stdlib}/lib-dynload/*.so"):
            self._libraries(library)
        for place, source in trees.items():
            shutil.copytree(
                source, f"{root}{place}", ignore=shutil.ignore_patterns("__pycache__", ".git", ".*cache"), symlinks=True
            )
        for file, text in (
            ("init", GUEST_INIT),
            ("etc/passwd", "root:x:0:0::/root:/bin/sh\nu:x:1000:1000::/home/u:/bin/sh\n"),
            ("etc/group", "root:x:0:\nu:x:1000:\n"),
        ):
            with open(f"{root}/{file}", "w", encoding="utf-8") as out:
                out.write(text)
        os.chmod(f"{root}/init", 0o755)

    @staticmethod
    def _version() -> str:
        return os.path.basename(os.path.realpath("/usr/bin/python3")).removeprefix("python")

    def _program(self, path: str, place: str) -> None:
        real = os.path.realpath(path)
        target = f"{self._root}{place}"
        if not os.path.exists(target):
            shutil.copy(real, target)
        self._libraries(real)

    def _libraries(self, path: str) -> None:
        told = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
        for line in told.splitlines():
            for word in line.split():
                if word.startswith("/") and os.path.exists(word):
                    # one place for all: /lib is /usr/lib in the guest
                    target = f"{self._root}{word if word.startswith('/usr/') else '/usr' + word}"
                    if not os.path.exists(target):
                        os.makedirs(os.path.dirname(target), exist_ok=True)
                        shutil.copy(os.path.realpath(word), target)
