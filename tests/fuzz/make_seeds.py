"""Writes the seed corpus: small real libraries and programs of many shapes, and RECORD files.
make_seeds.py FOLDER
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

PROVIDER = "int one(void) { return 1; } int two(void) { return 2; } int three = 3;"
USER = "int one(void); int two(void); extern int three; __attribute__((weak)) int four(void);"
BODY = "int use(void) { return one() + two() + three + (four ? four() : 0); }"
OLD = 'int old(void) { return 0; } __asm__(".symver old,one@V0"); ' + PROVIDER
VERSIONS = "V0 { local: *; }; V1 { global: one; }; V2 { global: two; three; } V1;"

# Files of this repository, which the harness looks for, and others; the limit of a path is 4096.
PATHS = ["setup.py", "none.py", "docs/conf.py", "a/tests/x.py", "tests/x.py", "a.pyc", "/setup.py"]
LONG = ["a/" * 2046 + ".py", "a/" * 2046 + "a.py", "a/" * 2046 + "aa.py"]

SMALL = ["-nostdlib", "-s", "-O1", "-w", "-Wl,-z,noseparate-code,-z,norelro"]


def cut_sections(path: Path) -> None:
    """Drop what lies after the last segment: section headers, which no loader reads."""
    data = path.read_bytes()
    (at,), (count,) = struct.unpack_from("<Q", data, 32), struct.unpack_from("<H", data, 56)
    headers = [struct.unpack_from("<IIQQQQQQ", data, at + 56 * i) for i in range(count)]
    path.write_bytes(data[: max(h[2] + h[5] for h in headers)])


def main(target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "v.map").write_text(VERSIONS)
        (folder / "p.c").write_text(PROVIDER)
        (folder / "o.c").write_text(OLD)
        (folder / "u.c").write_text(USER + BODY)
        (folder / "m.c").write_text(USER + BODY + " void _start(void) { use(); }")
        gcc = ["gcc", *SMALL]
        shared = [*gcc, "-shared", "-fPIC"]

        def make(out: str, command: list[str], *rest: str) -> Path:
            subprocess.run([*command, "-o", str(target / out), *rest], check=True, cwd=folder)
            return target / out

        for style in ("gnu", "sysv", "both"):
            hash_style = f"-Wl,--hash-style={style}"
            plain = make(f"plain-{style}", shared, "p.c", hash_style, "-Wl,-soname,libplain.so.1")
            versioned = make(
                f"versioned-{style}", shared, "o.c", hash_style, "-Wl,-soname,libv.so.1",
                "-Wl,--version-script=v.map",
            )  # fmt: skip
            make(f"user-{style}", shared, "u.c", str(versioned), hash_style,
                 "-Wl,-rpath,$ORIGIN/../lib", "-Wl,--disable-new-dtags,--build-id")  # fmt: skip
            make(f"now-{style}", shared, "u.c", str(versioned), str(plain), hash_style,
                 "-Wl,-rpath,/lib:$ORIGIN", "-Wl,-z,now,-z,nodefaultlib")  # fmt: skip
            make(f"program-{style}", gcc, "-pie", "m.c", str(versioned), hash_style)
        make("fixed", [*gcc, "-no-pie"], "m.c", str(target / "versioned-gnu"))
        make("static", [*gcc, "-static"], "p.c", "-Wl,-e,0")
        make("relr", shared, "u.c", str(target / "plain-gnu"), "-Wl,-z,pack-relative-relocs")
    for path in target.iterdir():
        cut_sections(path)
    data = (target / "versioned-gnu").read_bytes()
    (target / "short").write_bytes(data[:63])
    (target / "header").write_bytes(data[:64])
    (target / "cut").write_bytes(data[: len(data) // 2])
    (target / "class32").write_bytes(data[:4] + b"\1" + data[5:])
    (target / "big").write_bytes(data[:5] + b"\2" + data[6:])
    for name, end in (("unix", ",9\n"), ("dos", ",0\r\n"), ("bare", ",")):
        record = "".join(f"{path},sha256=aBc_-d{end}" for path in PATHS)
        (target / f"record-{name}").write_bytes(record.encode())
    for path in LONG:
        (target / f"record-{len(path)}").write_bytes(f"{path},sha256=x,9".encode())
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:6d} {path.name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
