"""CU201 to CU207."""

import pytest
from facts import PREFIX, SITE, driver, environment, facts, fired, nvcc, one, toolkit, torch, wheel

from cudriver.stack.model import Evidence, Framework, HostCompiler, NvccChoice, Toolkit
from cudriver.stack.rules import cu2, judge, verdict

OWN = Toolkit(
    "environment", "wheels", "12.8", f"{PREFIX}/nvidia", Evidence(f"{PREFIX}/METADATA", 3, "12.8")
)


class TestMatch:
    def test_a_note(self):
        found = one(facts(toolkits=[toolkit("12.4.1", "PATH"), OWN]), "CU201", "note")
        assert "12.8" in found.title
        assert "12.4" in found.title
        assert [e.value for e in found.evidence] == ["12.8", "12.4.1"]

    def test_an_error_under_match_system(self):
        found = one(
            facts(toolkits=[toolkit("12.6.1", "PATH"), OWN], match="system"), "CU201", "error"
        )
        assert "--index-url https://download.pytorch.org/whl/cu126" in found.fix[0]
        assert found.fix[-1].startswith("sudo apt-get install cuda-toolkit-12-8 ")
        own = Toolkit("environment", "conda", "12.8.1", PREFIX, OWN.evidence)
        of = facts(toolkits=[toolkit("12.6.1", "PATH"), own], match="system")
        assert one(of, "CU201").fix[-1] == found.fix[-1]

    def test_conda_pins_cuda_version(self):
        of = facts(
            environment=environment("conda", "mamba"),
            toolkits=[toolkit("12.4.1", "PATH"), OWN],
            match="system",
        )
        assert one(of, "CU201").fix[0] == f"mamba install -p {PREFIX} cuda-version=12.4"

    @pytest.mark.parametrize(
        ("level", "own", "system", "severity", "settled"),
        [
            ("major", "12.8", "12.4.1", None, True),
            ("major", "12.8", "13.0.1", "error", True),
            ("major", "12.8.1", "12", None, True),
            ("minor", "12.8", "12.4.1", "error", True),
            ("minor", "12.8.1", "12.8.1", None, True),
            ("minor", "12.8.1", "12.8", None, True),
            ("minor", "12.8.1", "12", "note", False),
            ("exact", "12.8", "12.9.1", "error", False),
            ("exact", "12.8.1", "12.8", "note", False),
            ("exact", "12.8.1", "12.8.1", None, True),
        ],
    )
    def test_levels(self, level, own, system, severity, settled):
        """What is told of both versions may be too little for the level."""
        kits = [
            toolkit("12.8.1", "PATH"),
            Toolkit("environment", "wheels", own, "/e", OWN.evidence),
        ]
        kits[0].version = system
        of = facts(toolkits=kits, match="system", match_level=level)
        assert [f.severity for f in fired(of, "CU201")] == [severity] * (severity is not None)
        assert cu2.settled(of) is settled

    def test_exact_is_not_settled_by_two_numbers(self):
        of = facts(toolkits=[toolkit("12.8.1", "PATH"), OWN], match="system", match_level="exact")
        found = one(of, "CU201", "note")
        assert "12.8.1" in found.title
        assert verdict([found], of) == "unknown"
        told = Toolkit("environment", "conda", "12.8.1", PREFIX)
        of.toolkits[1] = told
        assert fired(of, "CU201") == []
        assert verdict([], of) == "consistent"

    def test_exact_compares_what_both_tell(self):
        own = Toolkit("environment", "conda", "12.8.0", PREFIX)
        assert fired(
            facts(toolkits=[toolkit("12.8.1", "PATH"), own], match="system", match_level="exact"),
            "CU201",
        )
        assert not fired(facts(toolkits=[toolkit("12.8.1", "PATH"), own], match="system"), "CU201")

    def test_of_two_toolkits_the_one_of_pytorchs_major_counts(self):
        own = [
            toolkit(version, path=f"{SITE}/nvidia{n}", origin="environment")
            for n, version in enumerate(("13.0.2", "12.8.1"))
        ]
        found = one(facts(toolkits=[*own, toolkit("12.4.1", "default")]), "CU201", "note")
        assert "12.8" in found.title
        assert "13.0" not in found.title
        own.append(toolkit("12.6.0", path=f"{SITE}/other", origin="environment"))
        found = one(facts(toolkits=[*own, toolkit("12.4.1", "default")]), "CU201", "note")
        assert "has CUDA 12.8" in found.title, "the first of them"

    def test_pytorch_stands_in_for_packages(self):
        assert "12.8" in one(facts(toolkits=[toolkit("12.4.1")]), "CU201").title

    def test_nothing_to_match_cannot_be_told(self):
        of = facts(match="system")
        assert one(of, "CU201", "note").title.endswith("found in the system")
        assert verdict(judge(of), of) == "unknown"

    def test_equal_is_silent(self):
        assert fired(facts(toolkits=[toolkit("12.8.1", "PATH"), OWN]), "CU201") == []

    @pytest.mark.parametrize(
        ("chosen", "theirs"),
        [
            (((), (), ()), "12.6"),  # the newest
            (((), (), ("/usr/local/cuda",)), "12.4"),
            (((), ("PATH",), ("/usr/local/cuda",)), "12.6"),
            ((("CUDA_HOME",), ("PATH",), ("CUDA_PATH",)), "11.8"),
            (((), ("PATH",), ("CUDA_PATH",)), "12.4"),
        ],
    )
    def test_which_of_several_toolkits_is_the_systems(self, chosen, theirs):
        versions = ("11.8.0", "12.6.1", "12.4.0")
        kits = [toolkit(version, *by) for version, by in zip(versions, chosen, strict=True)]
        told = one(facts(toolkits=kits, match="system"), "CU201", "error").title
        assert told.endswith(f"the system's toolkit is {theirs}")

    @pytest.mark.parametrize(
        ("versions", "theirs"),
        [
            (("12.9.1", "12.10.0"), "12.10"),
            ((None, "12.4.1"), "12.4"),
            (("new", "12.4.1"), "12.4"),
        ],
    )
    def test_the_newest_toolkit_that_tells_its_version(self, versions, theirs):
        kits = [toolkit(version or "12.8.1") for version in versions]
        kits[0].version = versions[0]
        assert one(facts(toolkits=kits), "CU201", "note").title.split("; ")[0].endswith(theirs)

    def test_a_framework_without_cuda_is_not_the_environments(self):
        other = Framework("jax", "0.7.2", "12.4", variant="unknown")
        made = facts(toolkits=[toolkit("12.4.1")], frameworks=[other, torch()])
        assert "has CUDA 12.8" in one(made, "CU201", "note").title
        made.frameworks[1].cuda_evidence = None
        assert one(made, "CU201").evidence[0] == Evidence(f"{SITE}/torch", None, "12.8")

    @pytest.mark.parametrize(("match", "told"), [("system", True), (None, False)])
    def test_one_side_alone(self, match, told):
        made = facts(toolkits=[toolkit("12.4.1")], frameworks=[], match=match)
        found = fired(made, "CU201")
        assert [f.title.split()[-1] for f in found] == ["environment"] * told
        assert fired(facts(toolkits=[], frameworks=[], match=match), "CU201") == []

    def test_no_pytorch_for_the_systems_cuda(self):
        """Then only the system can be made to match."""
        for frameworks, theirs in (([torch()], "12.1.1"), ([], "12.6.1")):
            kits = [toolkit(theirs), OWN]
            (fixes,) = one(facts(toolkits=kits, match="system", frameworks=frameworks), "CU201").fix
            assert fixes.startswith("sudo apt-get install cuda-toolkit-12-8 ")

    def test_where_both_sides_of_a_match_stand(self):
        inside = toolkit("12.8.1", path=f"{SITE}/nvidia", origin="environment")
        system = toolkit("12.4.1", "PATH")
        made = facts(toolkits=[inside, system], match="system")
        assert one(made, "CU201", "error").evidence == [inside.evidence, system.evidence]
        system.evidence = None
        told = one(made, "CU201", "error").evidence[1]
        assert (told.file, told.value) == (system.path, "12.4.1")


class TestNvcc:
    def test_another_major(self):
        kit = toolkit("11.8.0", "PATH")
        assert one(facts(toolkits=[kit], nvcc=nvcc(kit)), "CU202", "note")
        found = one(facts(toolkits=[kit], nvcc=nvcc(kit, "CUDA_HOME")), "CU202", "warning")
        assert found.predicts.startswith("The detected CUDA version (11.8) mismatches")
        assert found.evidence[0].file == kit.nvcc
        assert found.fix[-1] == "export CUDA_HOME=/usr/local/cuda-12.8"

    def test_what_nvcc_itself_says_is_not_known(self):
        kit = toolkit("11.8.0", "PATH")
        chosen = nvcc(kit)
        chosen.evidence = None
        found = one(facts(toolkits=[kit], nvcc=chosen), "CU202")
        assert (found.evidence[0].file, found.evidence[0].value) == (kit.nvcc, "11.8.77")

    def test_a_fitting_one_is_at_hand(self):
        wrong, right = toolkit("11.8.0", "PATH"), toolkit("12.8.1")
        found = one(facts(toolkits=[wrong, right], nvcc=nvcc(wrong)), "CU202")
        assert found.fix == ["export CUDA_HOME=/usr/local/cuda-12.8"]

    def test_conda(self):
        kit = toolkit("11.8.0", "PATH")
        found = one(
            facts(environment=environment("conda", "conda"), toolkits=[kit], nvcc=nvcc(kit)),
            "CU202",
        )
        assert found.fix[0] == f"conda install -p {PREFIX} 'cuda-nvcc=12.8.*'"

    def test_another_minor(self):
        kit = toolkit("12.4.1", "PATH")
        of = facts(toolkits=[kit], nvcc=nvcc(kit))
        assert fired(of, "CU202") == []
        assert "minor version mismatch" in one(of, "CU203", "note").predicts

    def test_equal(self):
        kit = toolkit("12.8.1", "PATH")
        of = facts(toolkits=[kit], nvcc=nvcc(kit))
        assert fired(of, "CU202") == fired(of, "CU203") == []

    def test_no_nvcc_though_wanted(self):
        of = facts(distributions=[wheel("torch", "2.8.0"), wheel("deepspeed", "0.17.0")])
        found = one(of, "CU204", "warning")
        assert found.evidence[0].file.endswith("deepspeed-0.17.0.dist-info/METADATA")
        assert "CUDA_HOME environment variable is not set" in found.predicts

    @pytest.mark.parametrize(
        ("path", "by", "package", "severity"),
        [
            ("/usr/local/cuda-11.8", "PATH", "x", "note"),
            ("/usr/local/cuda-11.8", "PATH", "deepspeed", "warning"),
            ("/usr/local/cuda-11.8", "CUDA_PATH", "x", "warning"),
            (PREFIX, "PATH", "x", "warning"),
            (f"{PREFIX}-2", "PATH", "x", "note"),
        ],
    )
    def test_signs_that_somebody_compiles(self, path, by, package, severity):
        kit = toolkit("11.8.0", by, path=path)
        of = facts(toolkits=[kit], nvcc=nvcc(kit, by), distributions=[wheel(package, "1.0")])
        one(of, "CU202", severity)

    def test_no_nvcc_and_nobody_wants_it(self):
        assert fired(facts(), "CU204") == []
        wanting = [wheel("deepspeed", "0.17.0")]
        assert fired(facts(distributions=wanting, frameworks=[]), "CU204") == []
        cpu = [torch("2.8.0+cpu", None)]
        assert fired(facts(distributions=wanting, frameworks=cpu), "CU204") == []
        there = nvcc(toolkit("12.8.1", "PATH"))
        assert fired(facts(distributions=wanting, nvcc=there), "CU204") == []

    def test_an_nvcc_that_is_not_there_or_tells_nothing(self):
        chosen = nvcc(toolkit("11.8.0", "PATH"))
        chosen.exists = False
        assert fired(facts(nvcc=chosen), "CU202") == fired(facts(nvcc=chosen), "CU203") == []
        chosen.exists, chosen.version = True, None
        assert fired(facts(nvcc=chosen), "CU202") == fired(facts(nvcc=chosen), "CU203") == []

    def test_pytorchs_file_is_evidence_where_it_is_known(self):
        kit = toolkit("11.8.0", "PATH")
        of = facts(toolkits=[kit], nvcc=nvcc(kit))
        assert [e.file for e in one(of, "CU202").evidence] == [kit.nvcc, f"{SITE}/torch/version.py"]
        of.frameworks[0].cuda_evidence = None
        assert [e.file for e in one(of, "CU202").evidence] == [kit.nvcc]
        of.distributions, of.nvcc = [wheel("deepspeed", "0.17.0")], NvccChoice()
        of.frameworks[0].cuda = None
        assert one(of, "CU204", "warning").fix[-1].startswith("export CUDA_HOME=")


class TestHome:
    @pytest.mark.parametrize(
        ("value", "says"),
        [
            ("/usr/local/cuda:/opt", "list"),
            ("cuda", "absolute"),
            (":/usr/local/cuda", "list"),
            ("/nowhere", "does not exist"),
        ],
    )
    def test_malformed_or_missing(self, value, says):
        of = facts(
            environment=environment(CUDA_HOME=value),
            nvcc=NvccChoice(value, "CUDA_HOME", f"{value}/bin/nvcc"),
            toolkits=[toolkit("12.8.1")],
        )
        found = one(of, "CU205", "warning")
        assert says in found.title
        assert found.fix == ["export CUDA_HOME=/usr/local/cuda-12.8"]
        assert (found.evidence[0].file, found.evidence[0].value) == ("$CUDA_HOME", value)

    def test_an_empty_variable_hides_no_other(self):
        of = facts(environment=environment(CUDA_HOME="", CUDA_PATH="cuda"))
        assert one(of, "CU205", "warning").evidence[0].file == "$CUDA_PATH"

    def test_a_toolkit_of_another_major_is_no_fixing(self):
        of = facts(
            environment=environment(CUDA_HOME="/nowhere"),
            nvcc=NvccChoice("/nowhere", "CUDA_HOME", "/nowhere/bin/nvcc"),
            toolkits=[toolkit("13.0.2", "/usr/local/cuda")],
        )
        fixes = one(of, "CU205", "warning").fix
        assert fixes[0] == "unset CUDA_HOME"
        assert fixes[1].startswith("sudo apt-get install cuda-toolkit-12-8 ")
        assert fixes[2] == "export CUDA_HOME=/usr/local/cuda-12.8"
        of.toolkits.append(toolkit("12.4.1"))
        assert one(of, "CU205").fix == ["export CUDA_HOME=/usr/local/cuda-12.4"]
        of.toolkits.append(toolkit("12.8.1"))
        assert one(of, "CU205").fix == ["export CUDA_HOME=/usr/local/cuda-12.8"]

    def test_conda_has_nvcc_of_cuda_11_on_another_channel(self):
        kit = toolkit("13.0.2", "PATH")
        of = facts(
            environment=environment("conda", "conda"),
            frameworks=[torch("1.13.1", "11.7")],
            toolkits=[kit],
            nvcc=nvcc(kit),
        )
        expected = f"conda install -p {PREFIX} 'cuda-nvcc=11.7.*' -c nvidia"
        assert one(of, "CU202").fix == [expected, f"export CUDA_HOME={PREFIX}"]
        of.environment.installer = "pixi"
        assert one(of, "CU202").fix[0] == "pixi add 'cuda-nvcc=11.7.*'"
        of.environment.installer, of.frameworks = "conda", [torch("2.1.0", "12.0")]
        assert one(of, "CU202").fix[0] == f"conda install -p {PREFIX} 'cuda-nvcc=12.0.*'"

    def test_no_nvcc_inside(self):
        bare = toolkit("12.8.1", "CUDA_HOME", path="/opt/runtime", nvcc=None)
        of = facts(
            environment=environment(CUDA_HOME="/opt/runtime"),
            nvcc=NvccChoice("/opt/runtime", "CUDA_HOME", "/opt/runtime/bin/nvcc"),
            toolkits=[bare, toolkit("12.4.1")],
        )
        assert "bin/nvcc" in one(of, "CU205", "warning").title

    def test_libraries_alone_and_no_nvcc_anywhere_are_a_choice(self):
        bare = toolkit("12.8.1", "CUDA_HOME", path="/opt/runtime", nvcc=None)
        of = facts(
            environment=environment(CUDA_HOME="/opt/runtime"),
            nvcc=NvccChoice("/opt/runtime", "CUDA_HOME", "/opt/runtime/bin/nvcc"),
            toolkits=[bare],
        )
        assert fired(of, "CU205") == []

    @pytest.mark.parametrize("value", ["/opt/cuda ", " /opt/cuda"])
    def test_a_blank_too_many(self, value):
        of = facts(environment=environment(CUDA_HOME=value), toolkits=[toolkit("12.8.1")])
        assert "is not an absolute path" in one(of, "CU205", "warning").title

    @pytest.mark.parametrize("which", ["home", "path", "none on PATH", "none at home"])
    def test_what_is_not_known_is_not_compared(self, which):
        home, path = toolkit("12.8.1", "CUDA_HOME"), toolkit("11.8.0", "PATH")
        if which in ("home", "path"):
            {"home": home, "path": path}[which].version = None
        kits = {"none on PATH": [home], "none at home": [path]}.get(which, [home, path])
        of = facts(
            environment=environment(CUDA_HOME=home.path),
            nvcc=nvcc(home, "CUDA_HOME"),
            toolkits=kits,
        )
        assert fired(of, "CU205") == []

    def test_the_nvcc_on_path_is_evidence(self):
        home, path = toolkit("12.8.1", "CUDA_HOME"), toolkit("11.8.0", "PATH")
        of = facts(
            environment=environment(CUDA_HOME=home.path),
            nvcc=nvcc(home, "CUDA_HOME"),
            toolkits=[home, path],
        )
        found = one(of, "CU205")
        assert found.evidence[1] == Evidence(path.nvcc, None, "11.8")
        assert found.fix == [f"export PATH={home.path}/bin:$PATH"]
        path.nvcc = None
        assert one(of, "CU205").evidence[1].file == path.path
        of.toolkits += [toolkit("11.0.0", "CUDA_HOME"), toolkit("11.2.0", "PATH")]
        assert one(of, "CU205").fix == [f"export PATH={home.path}/bin:$PATH"], "the first of each"
        assert one(of, "CU205").title.endswith("CUDA 12.8, the nvcc on PATH is CUDA 11.8")

    @pytest.mark.parametrize(("version", "severity"), [("11.8.0", "warning"), ("12.4.1", "note")])
    def test_another_version_than_path(self, version, severity):
        home, path = toolkit("12.8.1", "CUDA_HOME"), toolkit(version, "PATH")
        of = facts(
            environment=environment(CUDA_HOME=home.path),
            nvcc=nvcc(home, "CUDA_HOME"),
            toolkits=[home, path],
        )
        one(of, "CU205", severity)

    def test_right(self):
        kit = toolkit("12.8.1", "CUDA_HOME", "PATH")
        of = facts(
            environment=environment(CUDA_HOME=kit.path), nvcc=nvcc(kit, "CUDA_HOME"), toolkits=[kit]
        )
        assert fired(of, "CU205") == []

    def test_two_toolkits_of_one_version_are_no_matter(self):
        """CUDA_HOME and the nvcc on PATH, as far as major and minor go."""
        home = toolkit("12.8.1", "CUDA_HOME", path="/opt/cuda")
        for version, told in (("12.8.0", []), ("12.4.1", ["note"]), ("11.8.0", ["warning"])):
            path = toolkit(version, "PATH", path="/usr/local/cuda")
            chosen = environment(CUDA_HOME="/opt/cuda")
            made = facts(toolkits=[home, path], nvcc=nvcc(home, "CUDA_HOME"), environment=chosen)
            assert [f.severity for f in fired(made, "CU205")] == told, version

    def test_a_path_with_a_blank_is_quoted(self):
        kit = toolkit("12.8.1", path="/opt/my cuda")
        made = facts(toolkits=[kit], environment=environment(CUDA_HOME="relative/cuda"))
        assert one(made, "CU205", "warning").fix == ["export CUDA_HOME='/opt/my cuda'"]
        made.nvcc = nvcc(toolkit("11.8.0"))
        assert one(made, "CU202").fix == ["export CUDA_HOME='/opt/my cuda'"]

    def test_without_pytorch_any_whole_toolkit_is_good(self):
        wrong = environment(CUDA_HOME="relative/cuda")
        made = facts(toolkits=[toolkit("12.8.1")], environment=wrong, frameworks=[])
        assert one(made, "CU205").fix == ["export CUDA_HOME=/usr/local/cuda-12.8"]
        bare = facts(toolkits=[toolkit("12.8.1", nvcc=None)], environment=wrong)
        assert one(bare, "CU205").fix == ["unset CUDA_HOME"]
        other = facts(toolkits=[toolkit("11.8.0")], environment=wrong)
        assert one(other, "CU205").fix[0] == "unset CUDA_HOME"
        assert len(one(other, "CU205").fix) > 1

    def test_the_folder_tells_where_nvcc_does_not(self):
        kit = toolkit("12.8.1", path="/opt/a", nvcc_version=None)
        made = facts(toolkits=[kit], environment=environment(CUDA_HOME="relative/cuda"))
        assert one(made, "CU205").fix == ["export CUDA_HOME=/opt/a"]

    def test_nvcc_tells_of_its_toolkit_before_the_folder_does(self):
        """One of two good ones whose version.json is of another release."""
        kits = [
            toolkit("12.8.1", path="/opt/a", nvcc_version="12.4.131"),
            toolkit("12.4.0", path="/opt/b", nvcc_version="12.8.93"),
        ]
        made = facts(toolkits=kits, environment=environment(CUDA_HOME="relative/cuda"))
        assert one(made, "CU205").fix == ["export CUDA_HOME=/opt/b"]


class TestDisagree:
    def test_link_and_path(self):
        found = one(
            facts(toolkits=[toolkit("12.4.1", "/usr/local/cuda"), toolkit("12.8.1", "PATH")]),
            "CU206",
            "note",
        )
        assert "update-alternatives" in found.fix[0]

    def test_one_folder_of_two_releases(self):
        claims = [
            Evidence("/usr/local/cuda-12.4/version.json", 4, "12.4.1"),
            Evidence("/usr/local/cuda-12.4/include/cuda.h", 2, "12.8"),
        ]
        found = one(facts(toolkits=[toolkit("12.4.1", "PATH", claims=claims)]), "CU206", "warning")
        assert found.evidence == claims

    def test_what_the_environment_holds_is_no_toolkit_of_the_system(self):
        claims = [Evidence("/e/a", 4, "12.4.1"), Evidence("/e/b", 2, "12.8")]
        mixed = toolkit("12.4.1", origin="environment", claims=claims)
        assert fired(facts(toolkits=[mixed]), "CU206") == []
        same = toolkit("12.4.1", claims=[claims[0], Evidence("/e/b", 2, "12.4")])
        assert fired(facts(toolkits=[same]), "CU206") == []

    def test_the_first_that_differs_is_told_with_what_leads_to_it(self):
        kits = [
            toolkit("12.4.1", "/usr/local/cuda"),
            toolkit("12.4.0", "CUDA_PATH", path="/opt/same"),
            toolkit("12.8.1", "PATH", "CUDA_HOME"),
            toolkit("11.8.0", "CUDA_PATH"),
        ]
        kits[0].evidence = None
        found = one(facts(toolkits=kits), "CU206", "note")
        expected = "/usr/local/cuda is CUDA 12.4, PATH and CUDA_HOME leads to CUDA 12.8"
        assert found.title == expected
        assert found.evidence == [kits[2].evidence]
        assert fired(facts(toolkits=kits[1:]), "CU206") == []

    def test_several_with_one_chosen(self):
        kits = [
            toolkit("12.8.1", "/usr/local/cuda", "PATH", "CUDA_HOME"),
            toolkit("12.4.1"),
            toolkit("11.8.0"),
        ]
        assert fired(facts(toolkits=kits), "CU206") == []


class TestHostCompiler:
    def of(self, version, kind="gcc", env=None, limit=13):
        kit = toolkit(
            "12.4.1",
            "PATH",
            host_compiler_limit=limit,
            clang_limit=17,
            host_compiler_evidence=Evidence(
                "/usr/local/cuda-12.4/include/crt/host_config.h", 136, "#if __GNUC__ > 13"
            ),
        )
        return facts(
            toolkits=[kit],
            nvcc=nvcc(kit),
            compiler=HostCompiler("/usr/bin/gcc", version, kind),
            environment=env or environment(),
        )

    def test_the_limit_is_that_of_the_chosen_nvcc(self):
        of = self.of("14")
        of.toolkits.insert(0, toolkit("11.8.0", host_compiler_limit=11))
        assert "not supported" in one(of, "CU207").predicts
        assert "later than 13" in one(of, "CU207").predicts

    @pytest.mark.parametrize(
        ("version", "kind", "told"),
        [
            ("13.3", "gcc", False),
            ("17.0", "clang", False),
            ("18", "clang", True),
            ("x", "gcc", False),
        ],
    )
    def test_the_newest_that_is_taken(self, version, kind, told):
        assert bool(fired(self.of(version, kind), "CU207")) is told

    def test_what_is_not_known_is_not_refused(self):
        assert fired(self.of("14", limit=None), "CU207") == []
        of = self.of("14")
        of.nvcc.exists = False
        assert fired(of, "CU207") == []
        of = self.of("14")
        of.compiler = None
        assert fired(of, "CU207") == []

    def test_an_nvcc_by_another_name(self):
        """/usr/local/cuda is a link to the folder that is known."""
        of = self.of("14")
        of.nvcc.nvcc = "/usr/local/cuda/bin/nvcc"
        one(of, "CU207", "note")
        of.nvcc.evidence = None
        assert fired(of, "CU207") == []

    def test_clangs_limit_stands_elsewhere(self):
        of = self.of("14")
        of.toolkits[0].host_compiler_evidence = None
        assert [e.file for e in one(of, "CU207", "note").evidence] == ["/usr/bin/gcc"]
        found = one(self.of("19", "clang"), "CU207", "note")
        assert [e.file for e in found.evidence] == ["/usr/bin/gcc"]
        assert found.fix == ["sudo apt-get install clang-17", "export NVCC_CCBIN=clang++-17"]

    def test_too_new(self):
        assert one(self.of("14"), "CU207", "note")  # nobody means to compile
        of = self.of("14")
        of.nvcc.chosen_by = "CUDA_HOME"
        found = one(of, "CU207", "warning")
        assert (
            found.predicts
            == "unsupported GNU version! gcc versions later than 13 are not supported!"
        )
        assert found.evidence[1].line == 136
        assert found.fix[-1] == "export NVCC_CCBIN=/usr/bin/g++-13"

    def test_clang(self):
        assert "clang" in one(self.of("19", "clang"), "CU207").predicts

    def test_conda(self):
        assert (
            "gxx_linux-64"
            in one(self.of("14.2.0", env=environment("conda", "conda")), "CU207").fix[0]
        )

    @pytest.mark.parametrize("version", ["13", "12.2.0", None])
    def test_silent(self, version):
        assert fired(self.of(version), "CU207") == []

    def test_no_nvcc_no_question(self):
        of = self.of("14")
        of.nvcc = NvccChoice()
        assert fired(of, "CU207") == []

    def test_no_compiler_no_question(self):
        of = self.of("14")
        of.compiler = None
        assert fired(of, "CU207") == []


def test_cpu_pytorch_has_no_nvcc_to_match():
    kit = toolkit("11.8.0", "PATH")
    of = facts(
        frameworks=[torch("2.8.0+cpu", None)], toolkits=[kit], nvcc=nvcc(kit), driver=driver()
    )
    assert fired(of, "CU202") == fired(of, "CU203") == []
