"""Toolkits of the system and of environments, and which nvcc a build would take."""

import pytest
from synth import toolkit

from cudriver.stack.machine import compilers, toolkits
from cudriver.stack.roots.asked import Asked
from cudriver.stack.roots.rootfs import Root


@pytest.fixture
def tree(tmp_path):
    """A root with a system folder layout, seen as "/"."""
    (tmp_path / "usr/local/bin").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    return tmp_path


def system(tree, **variables):
    root = Root(str(tree))
    found = toolkits.system(Asked(root, "/", variables))
    return {t.path: t for t in found}, root.problems


def link(path, target):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


class TestSystem:
    def test_a_header_that_cannot_be_read_hides_no_other(self, tree, monkeypatch):
        """root may read any file, so the test refuses it."""
        folder = tree / "usr/local/cuda-12.4"
        toolkit(folder, "12.4", nvcc=False)
        (folder / "include/cuda_runtime_api.h").write_text("#define CUDART_VERSION 12040\n")
        usual = Root.text

        def text(root, path, *limit):
            return None if path.endswith("/cuda.h") else usual(root, path, *limit)

        monkeypatch.setattr(Root, "text", text)
        evidence = system(tree)[0]["/usr/local/cuda-12.4"].evidence
        assert evidence.file == "/usr/local/cuda-12.4/include/cuda_runtime_api.h"

    def test_links_do_not_lead_out_of_the_root(self, tree, tmp_path_factory):
        outside = tmp_path_factory.mktemp("outside")
        toolkit(outside / "cuda", "12.9", nvcc=False)
        link(tree / "usr/local/cuda-12.9", str(outside / "cuda"))
        up = "/".join([".."] * 30)
        link(tree / "usr/local/cuda-12.8", f"{up}{outside}/cuda")
        link(tree / "usr/local/cuda", "/usr/local/cuda")
        assert system(tree)[0] == {}


class TestChoice:
    """The order of torch.utils.cpp_extension."""

    def test_an_nvcc_that_cannot_be_run_is_passed_over(self, tmp_path):
        for name, mode in (("one", 0o644), ("two", 0o755), ("three", 0o755)):
            (tmp_path / name).mkdir()
            (tmp_path / name / "nvcc").write_text("")
            (tmp_path / name / "nvcc").chmod(mode)
        (tmp_path / "folder/nvcc").mkdir(parents=True)
        folders = ["/absent", "/folder", "/one", "/two", "/three"]
        assert compilers.which(Root(str(tmp_path)), "nvcc", folders) == "/two/nvcc"
        assert compilers.which(Root(str(tmp_path)), "nvcc", folders[:3]) is None
