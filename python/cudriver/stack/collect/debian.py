"""Which Debian package owns a file."""

from __future__ import annotations

import os
import re

from cudriver.stack.rootfs import Root

# Beginnings of names.
_NVIDIA = ("libcu", "libnv", "libnpp", "libnccl", "cuda", "nvidia", "tensorrt")


class DebianOwners:
    """Which Debian package owns a file, by /var/lib/dpkg/info/*.list."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._lists: list[tuple[str, bytes]] | None = None
        self._versions: dict[str, str] | None = None

    def owner(self, path: str) -> str | None:
        """ "libcudnn9-cuda-12 9.14.0.64-1", or None."""
        if self._lists is None:
            self._lists = []
            for name in self.root.names("/var/lib/dpkg/info"):
                if name.endswith(".list") and name.startswith(_NVIDIA):
                    try:
                        raw = self.root.read(f"/var/lib/dpkg/info/{name}")
                    except (OSError, ValueError):
                        continue
                    self._lists.append((name[:-5].split(":")[0], b"\n" + raw + b"\n"))
        wanted = b"\n" + os.fsencode(path) + b"\n"
        for package, raw in self._lists:
            if wanted in raw:
                return f"{package} {self.versions().get(package, '')}".rstrip()
        return None

    def versions(self) -> dict[str, str]:
        """Installed Debian packages of CUDA, with their versions."""
        if self._versions is None:
            self._versions = {}
            text = self.root.text("/var/lib/dpkg/status", 64 << 20) or ""
            for match in re.finditer(
                r"^Package: ((?:lib(?:cu|nv|npp|nccl)|cuda|nvidia|tensorrt)\S*)\n"
                r"((?:.+\n)*?)Version: (\S+)",
                text,
                re.MULTILINE,
            ):
                if "Status: install ok installed" in match[2]:
                    self._versions[match[1]] = match[3]
        return self._versions
