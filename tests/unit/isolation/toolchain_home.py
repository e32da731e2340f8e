"""A made-up home with tool chains laid out as their installers lay them."""

from __future__ import annotations

import os

from saggar.isolation.toolchain_host import resolve

ELF = "\x7fELF"


class Home:
    """A home directory with the caller's environment and a workspace in it."""

    def __init__(self, base: str) -> None:
        self.path = os.path.realpath(base)
        self.workspace = self.dir("work")
        self.env: dict[str, str] = {"HOME": self.path}
        self.search: list[str] = []

    def dir(self, path: str) -> str:
        full = f"{self.path}/{path}"
        os.makedirs(full, exist_ok=True)
        return full

    def file(self, path: str, text: str = ELF, mode: int = 0o755) -> str:
        full = f"{self.path}/{path}"
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(full, mode)
        return full

    def link(self, path: str, target: str) -> str:
        full = f"{self.path}/{path}"
        os.makedirs(os.path.dirname(full), exist_ok=True)
        os.symlink(target, full)
        return full

    def python(self, prefix: str, version: str = "3.11") -> str:
        self.file(f"{prefix}/lib/python{version}/os.py", "", 0o644)
        self.file(f"{prefix}/bin/python{version}")
        self.link(f"{prefix}/bin/python3", f"python{version}")
        self.link(f"{prefix}/bin/python", "python3")
        return f"{self.path}/{prefix}"

    def venv(self, prefix: str, base: str) -> str:
        self.file(f"{prefix}/pyvenv.cfg", f"home = {base}/bin\nversion = 3.11\n", 0o644)
        self.dir(f"{prefix}/lib/python3.11/site-packages")
        self.link(f"{prefix}/bin/python", f"{base}/bin/python3")
        return f"{self.path}/{prefix}"

    def resolve(self, program: str, **kw):
        search = [f"{self.path}/{s}" for s in self.search] + ["/usr/bin", "/bin"]
        kw = {"path": ":".join(search), "cwd": self.workspace, "workspace": self.workspace, "env": self.env} | kw
        return resolve(program, **kw)
