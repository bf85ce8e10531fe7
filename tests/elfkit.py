"""Small ELF files made to order, and a real program that loads them and says what happened."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

HOST_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

static int show(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size, (void)data;
    if (strcmp(info->dlpi_name, "linux-vdso.so.1") != 0) {
        printf("map %s\n", info->dlpi_name);
    }
    return 0;
}

/* Each argument: N or L (now, lazy), L or G (local, global), a colon, a name. */
int main(int count, char **given)
{
    dl_iterate_phdr(show, NULL);
    for (int i = 1; i < count; i++) {
        int mode = given[i][0] == 'N' ? RTLD_NOW : RTLD_LAZY;
        mode |= given[i][1] == 'G' ? RTLD_GLOBAL : RTLD_LOCAL;
        void *handle = dlopen(given[i] + 3, mode);
        printf("dlopen %s\n", handle != NULL ? "ok" : dlerror());
        dl_iterate_phdr(show, NULL);
        fflush(stdout);
    }
    return 0;
}
"""


_compiled: dict[object, bytes] = {}


def compile_c(
    target: Path,
    source: str,
    *flags: str,
    shared: bool = True,
    versions: str | None = None,
) -> Path:
    """Compile `source` with gcc to `target`, once a process where no other file is named. versions:
    a linker version script."""
    key = target.name, source, flags, shared, versions
    target.parent.mkdir(parents=True, exist_ok=True)
    code = target.with_name(target.name + ".c")
    code.write_text(source)
    command = ["gcc", "-O1", "-w", "-o", str(target), str(code)]
    if shared:
        command[1:1] = ["-shared", "-fPIC"]
    if versions is not None:
        script = target.with_name(target.name + ".map")
        script.write_text(versions)
        command.append(f"-Wl,--version-script={script}")
    if key in _compiled:
        target.write_bytes(_compiled[key])
        target.chmod(0o755)
        return target
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    subprocess.run([*command, *flags], check=True, capture_output=True, text=True, env=plain)
    if not any("/" in flag for flag in flags):
        _compiled[key] = target.read_bytes()
    return target


class Step:
    """What the real loader did: its error text (None: loaded) and what was mapped then."""

    def __init__(self, error: str | None) -> None:
        self.error = error
        self.mapped: list[str] = []


def steps(printed: str) -> list[Step]:
    """What the host program printed: its start, and a step for each dlopen."""
    found = [Step(None)]
    for line in printed.splitlines():
        word, _, rest = line.partition(" ")
        if word == "dlopen":
            found.append(Step(None if rest == "ok" else rest))
        else:
            found[-1].mapped.append(rest)
    return found


def run_host(
    host: Path, dlopens: Sequence[str], environ: Mapping[str, str], cwd: Path
) -> tuple[list[Step], str, int]:
    """Run the host program. Returns the start and a step for each dlopen, stderr, the exit code."""
    done = subprocess.run(
        [str(host), *dlopens],
        env=dict(environ),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        errors="surrogateescape",
    )
    return steps(done.stdout), done.stderr, done.returncode


DT_NEEDED, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH, DT_FLAGS_1 = 1, 5, 14, 15, 29, 0x6FFFFFFB
IGNORED = 0x60000F00  # a tag that no loader knows


class Patch:
    """An ELF file's bytes whose dynamic section can be edited without a linker."""

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        phoff, phnum = struct.unpack_from("<Q", data, 32)[0], struct.unpack_from("<H", data, 56)[0]
        self.segments = []
        dynamic = 0
        for i in range(phnum):
            kind, _, offset, address, _, size = struct.unpack_from("<IIQQQQ", data, phoff + 56 * i)
            if kind == 1:
                self.segments.append((address, offset, size))
            elif kind == 2:
                dynamic = offset
        self.entries: list[tuple[int, int, int]] = []  # where, tag, value
        while True:
            tag, value = struct.unpack_from("<qQ", data, dynamic)
            if tag == 0:
                break
            self.entries.append((dynamic, tag, value))
            dynamic += 16
        table = next(v for _, t, v in self.entries if t == DT_STRTAB)
        self.strings = next(o + table - a for a, o, s in self.segments if a <= table < a + s)

    def string(self, value: int) -> str:
        start = self.strings + value
        return self.data[start : self.data.index(b"\0", start)].decode()

    def find(self, tag: int) -> list[tuple[int, int]]:
        """(where, value) of every entry with this tag."""
        return [(where, value) for where, t, value in self.entries if t == tag]

    def retag(self, where: int, tag: int) -> None:
        struct.pack_into("<q", self.data, where, tag)

    def drop_needed(self, keep: Sequence[str]) -> None:
        for where, value in self.find(DT_NEEDED):
            if self.string(value) not in keep:
                self.retag(where, IGNORED)

    def set_path(self, tag: int | None, text: str) -> None:
        """Turn the placeholder path into DT_RPATH or DT_RUNPATH of `text`; None: no path at all."""
        ((where, value),) = self.find(DT_RUNPATH) or self.find(DT_RPATH)
        if tag is None:
            self.retag(where, IGNORED)
            return
        self.retag(where, tag)
        room = len(self.string(value))
        raw = text.encode()
        assert len(raw) <= room, (len(raw), room)
        start = self.strings + value
        self.data[start : start + room] = raw.ljust(room, b"\0")


PLACEHOLDER = "/" + "x" * 900


def clean_environment(**variables: str) -> dict[str, str]:
    """An environment without any LD_ variable of the test's own."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "GLIBC_"))}
    return {**kept, **variables}
