"""Random folders, paths and variables: the model against the machine's own ld.so."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import elfkit
from cudriver.stack.loader.process import Process
from cudriver.stack.loader.search import Loader
from elfkit import DT_RPATH, DT_RUNPATH, PLACEHOLDER, Patch, clean_environment, compile_c, run_host

FOLDERS = ["d0", "d1", "d2", "d3"]
LIBRARIES = [f"libmade{i}.so.1" for i in range(5)]


class Stock(dict[str, bytes]):
    """File contents by name; too long to be printed."""

    def __repr__(self) -> str:
        return "Stock()"


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """Five libraries that need each other and carry a long path, and a host program."""
    folder = tmp_path_factory.mktemp("stock")
    for name in LIBRARIES:
        compile_c(folder / name, "int made;", "-nostdlib", f"-Wl,-soname,{name}")
    flags = ["-nostdlib", "-Wl,--no-as-needed", f"-Wl,-rpath,{PLACEHOLDER}"]
    data = Stock()
    for name in LIBRARIES:
        others = [str(folder / other) for other in LIBRARIES if other != name]
        made = compile_c(
            folder / "made" / name, "int made;", f"-Wl,-soname,{name}", *flags, *others
        )
        data[name] = made.read_bytes()
    host = compile_c(
        folder / "host", elfkit.HOST_SOURCE, f"-Wl,-rpath,{PLACEHOLDER}", "-ldl", shared=False
    )
    data["host"] = host.read_bytes()
    return data


# An entry of a search path. ROOT is the layout's folder.
entries = st.one_of(
    st.sampled_from(FOLDERS).map(lambda d: f"$ORIGIN/../{d}"),
    st.sampled_from(FOLDERS).map(lambda d: f"${{ORIGIN}}/../{d}//"),
    st.sampled_from(FOLDERS).map(lambda d: f"ROOT/{d}"),
    st.sampled_from(FOLDERS).map(lambda d: f"ROOT/{d}/"),
    st.sampled_from(FOLDERS),  # below the working directory
    st.sampled_from(["", "$ORIGIN", "ROOT/absent", "$ORIGIN/../absent/../d0", "$ORIGINAL/d1"]),
    st.sampled_from(["ROOT/$LIB", "ROOT/$PLATFORM", "/", "ROOT/d0/file"]),
)
paths = st.tuples(
    st.sampled_from([None, DT_RPATH, DT_RPATH, DT_RUNPATH]), st.lists(entries, max_size=4)
)
kinds = st.sampled_from(
    ["good"] * 12 + ["link", "link", "text", "empty", "folder", "32", "foreign", "dangling"]
)


@st.composite
def layouts(draw: st.DrawFn) -> dict[str, object]:
    files = {}
    for name in LIBRARIES:
        for folder in draw(st.lists(st.sampled_from([*FOLDERS, "."]), unique=True, max_size=3)):
            files[f"{folder}/{name}"] = (
                draw(kinds),
                draw(paths),
                draw(st.lists(st.sampled_from(LIBRARIES), unique=True, max_size=3)),
            )
    separators = st.sampled_from([":", ":", ";"])
    variable = None
    if draw(st.booleans()):
        variable = draw(separators).join(draw(st.lists(entries, min_size=1, max_size=4)))
    preload = draw(st.sampled_from([None, None, *LIBRARIES[:2], "ROOT/d0/" + LIBRARIES[0]]))
    names = st.one_of(
        st.sampled_from(LIBRARIES),
        st.tuples(st.sampled_from([*FOLDERS, "absent"]), st.sampled_from(LIBRARIES)).map(
            lambda pair: f"ROOT/{pair[0]}/{pair[1]}"
        ),
        st.tuples(st.sampled_from(FOLDERS), st.sampled_from(LIBRARIES)).map("/".join),
    )
    dlopens = draw(st.lists(st.tuples(st.sampled_from("LG"), names), min_size=1, max_size=4))
    return {
        "files": files,
        "variable": variable,
        "preload": preload,
        "host": draw(paths),
        "dlopens": dlopens,
    }


def build(layout: dict[str, object], root: Path, stock: Stock) -> Path:
    """Write the layout; returns the host program."""
    for folder in FOLDERS:
        (root / folder).mkdir()
    (root / "d0/file").write_text("no folder\n")

    def make(name: str, path: tuple[int | None, list[str]], needed: list[str]) -> bytes:
        patch = Patch(stock[name])
        if name != "host":
            patch.drop_needed(needed)
        patch.set_path(path[0], ":".join(path[1]).replace("ROOT", str(root)))
        return bytes(patch.data)

    good: list[Path] = []
    for where, (kind, path, needed) in layout["files"].items():  # type: ignore[attr-defined]
        target = root / where
        target.parent.mkdir(parents=True, exist_ok=True)
        data = make(target.name, path, needed)
        if kind == "link":
            same = [other for other in good if other.name == target.name]
            target.symlink_to(same[0] if same else "nowhere")
            continue
        if kind == "folder":
            target.mkdir()
            continue
        if kind == "dangling":
            target.symlink_to("nowhere")
            continue
        if kind == "text":
            data = b"no library at all" * 10
        elif kind == "empty":
            data = b""
        elif kind == "32":
            data = data[:4] + b"\1" + data[5:]
        elif kind == "foreign":
            other = 183 if data[18] != 183 else 62
            data = data[:18] + bytes([other]) + data[19:]
        else:
            good.append(target)
        target.write_bytes(data)
    host = root / "host"
    host.write_bytes(make("host", layout["host"], []))  # type: ignore[arg-type]
    host.chmod(0o755)
    return host


@settings(
    max_examples=int(os.environ.get("CUDRIVER_EXAMPLES", "75")),
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(layout=layouts())
def test_same_files_and_same_words(layout: dict[str, object], stock: Stock) -> None:
    root = Path(tempfile.mkdtemp(prefix="layout"))
    try:
        host = build(layout, root, stock)
        environ = {}
        if layout["variable"] is not None:
            environ["LD_LIBRARY_PATH"] = str(layout["variable"]).replace("ROOT", str(root))
        if layout["preload"] is not None:
            environ["LD_PRELOAD"] = str(layout["preload"]).replace("ROOT", str(root))
        dlopens = [(s, n.replace("ROOT", str(root))) for s, n in layout["dlopens"]]  # type: ignore[attr-defined]
        steps, stderr, code = run_host(
            host, [f"N{s}:{n}" for s, n in dlopens], clean_environment(**environ), root
        )
        process = Process(Loader(environ=environ, cwd=str(root)), str(host))
        if process.start.error is not None:
            # A preloaded library whose needs are missing ends the program. Of why a file cannot be
            # read ld.so has fewer words then.
            assert code == 127
            assert process.start.error.rpartition(": ")[0] in stderr
            return
        assert code == 0, stderr
        assert all("cannot be preloaded" in line for line in stderr.splitlines() if line), stderr
        assert steps[0].mapped == names(process)
        for (scope, name), step in zip(dlopens, steps[1:], strict=True):
            load = process.dlopen(name, everywhere=scope == "G")
            assert load.error == step.error
            assert names(process) == step.mapped
    finally:
        shutil.rmtree(root)


def names(process: Process) -> list[str]:
    """l_name of every object, as dl_iterate_phdr has them: the program's is empty."""
    return [obj.path if obj is not process.main else "" for obj in process.objects]
