"""Hand-made facts and findings for tests of what a person sees."""

from cudriver.stack.command import Command
from cudriver.stack.facts import (
    Environment,
    Evidence,
    Facts,
    Finding,
    Framework,
    Library,
    Missing,
    Problem,
    Shadowed,
)
from cudriver.stack.machine_facts import Device, Driver, Toolkit

SITE = "/home/ana/envs/train/lib/python3.11/site-packages"


def healthy() -> Facts:
    """PyTorch cu128 on an H200, with a system cuDNN that stays unused."""
    return Facts(
        Environment(
            "/home/ana/envs/train", "venv", python="3.11.7", site_packages=[SITE], installer="pip"
        ),
        driver=Driver(
            release="580.159.04",
            kernel_release="580.159.04",
            cuda="13.0",
            path="/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04",
            devices=[
                Device(0, "NVIDIA H200", compute_capability="9.0", memory=150_000_000_000),
                Device(1, "NVIDIA H200", compute_capability="9.0", visible=False),
            ],
        ),
        toolkits=[
            Toolkit("environment", "wheels", "12.8.1", f"{SITE}/nvidia"),
            Toolkit("system", "directory", "12.4.1", "/usr/local/cuda-12.4"),
        ],
        frameworks=[
            Framework(
                "torch",
                "2.8.0+cu128",
                cuda="12.8",
                cudnn="9.10.2",
                nccl="2.27.3",
                archs=["sm_90", "compute_120"],
                path=f"{SITE}/torch",
            )
        ],
        libraries=[
            Library(
                "libcudnn.so.9",
                f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9",
                version="9.10.2",
                provided_by="nvidia-cudnn-cu12 9.10.2.21",
                found_by="rpath of libtorch_cuda.so",
                shadowed=[
                    Shadowed("/usr/lib/x86_64-linux-gnu/libcudnn.so.9", "cache", "9.14.0"),
                ],
                family="cudnn",
            )
        ],
    )


PREDICTED = (
    f"ImportError: {SITE}/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol: "
    "__nvJitLinkCreate_12_8, version libnvJitLink.so.12"
)


def broken_findings() -> list[Finding]:
    """One finding of each severity."""
    return [
        Finding("CU201", "note", "the environment's toolkit (12.8) is not the system's (12.4)"),
        Finding(
            "CU303",
            "error",
            "libcusparse.so.12 needs __nvJitLinkCreate_12_8, which libnvJitLink.so.12 lacks",
            evidence=[
                Evidence(f"{SITE}/nvidia/nvjitlink/lib/libnvJitLink.so.12", None, "12.1.105"),
                Evidence(
                    f"{SITE}/torch-2.8.0.dist-info/METADATA", 31, "nvidia-nvjitlink-cu12==12.8.93"
                ),
            ],
            predicts=PREDICTED,
            fix=[
                Command(
                    "/home/ana/envs/train/bin/python -m pip install --force-reinstall --no-deps "
                    "nvidia-nvjitlink-cu12==12.8.93"
                )
            ],
            subject="torch",
        ),
        Finding("CU302", "warning", "libnccl.so.2 comes from outside the environment"),
    ]


def busy() -> tuple[Facts, list[Finding]]:
    """One of everything that a report can tell, and more of some than it shows at once."""
    site, system = "/srv/image/env/lib/python3.12/site-packages", "/usr/lib/x86_64-linux-gnu"
    facts = Facts(
        Environment("/srv/image/env", "conda", python="3.12.1", site_packages=[site]),
        driver=Driver(
            release="580.95.05",
            kernel_release="570.10",
            cuda="13.0",
            path="/opt/compat/libcuda.so.1",
            kind="compat",
            error="cuInit returns 804",
            devices=[
                Device(0, "Tesla T4", compute_capability="7.5"),
                Device(1, "Tesla T4", compute_capability="7.5"),
                Device(2),
            ],
            assumed=True,
        ),
        toolkits=[
            Toolkit("environment", "conda", None, "/srv/image/env"),
            Toolkit("system", "directory", None, "/opt/cuda"),
            Toolkit("system", "directory", "12.4.1", "/usr/local/cuda-12.4"),
        ],
        frameworks=[
            Framework("torch", "2.8.0+cpu", variant="cpu", distribution="torch"),
            Framework("jax", "0.7.2", variant="rocm", fails=True),
            Framework("cupy", "14.0", cuda="13", nccl="2.28", path=f"{site}/cupy", blocked="jax"),
            Framework("mine", "1.0", variant="unknown", modelled=False),
        ],
        libraries=[
            Library(f"lib{name}.so.1", f"{folder}/lib{name}.so.1", version, origin=origin, **more)
            for name, folder, version, origin, more in (
                ("cuda", system, "580", "system", {"family": "driver"}),
                ("a", f"{site}/a", "1.2", "environment", {"found_by": "preload by torch"}),
                ("b", system, None, "system", {"provided_by": "libb 1.0-1", "found_by": "cache"}),
                ("c", f"{site}/c", "3.4", "framework", {"found_by": "runpath of liba.so.1"}),
            )
        ],
        missing=[
            Missing(f"lib{name}", f"{site}/x.so")
            for name in ("z.so.4", "y.so.3", "x.so.2", "w.so.1", "w.so.1", "cuda.so.1")
        ],
        problems=[Problem(f"{site}/p{n}/RECORD", "no text", n or None) for n in range(5)],
        unsure=["jax: unread"],
        root="/srv",
    )  # fmt: skip
    facts.libraries[1].shadowed[:] = [
        Shadowed(f"{system}/liba.so.1", "cache", "1.1"),
        Shadowed("/srv/image/env/lib/liba.so.1", "default", None),
    ]
    facts.libraries[3].shadowed[:] = [Shadowed("/srv/image/env/lib/libc.so.1", "default", "3.3")]
    evidence = [Evidence(f"{site}/{n}/x", n, f"line {n}, " + "word " * n) for n in range(1, 9)]
    findings = [
        Finding("CU501", "note", "a note that is long enough for a second line " * 2, evidence[:1]),
        Finding("CU302", "warning", "libb.so.1 comes from outside", evidence, subject="cupy"),
        Finding("CU404", "warning", "without a fix", [Evidence("/etc/x", None, "")]),
        Finding("CU303", "error", "a.so needs f, which nothing provides", subject="jax"),
        Finding(
            "CU401",
            "error",
            "a title that is long enough for a second line " * 2,
            predicts="Error: " + "words " * 20,
            fix=[
                Command.of("pip install " + "torch==2.8.0 " * 9, heals=True, downloads=843_900_000)
            ],
            advice="Read the manual. " * 6,
            subject="torch",
            cpu=True,
        ),
    ]
    return facts, findings


def hostile() -> tuple[Facts, list[Finding]]:
    """Every string is markup, control characters, or bytes that are not text."""
    nasty = "<script>alert(1)</script>\"'&\x1b[31m\udcff\x00"
    facts = Facts(
        Environment(f"/tmp/{nasty}", "venv", python=nasty, site_packages=[f"/tmp/{nasty}/s"]),
        driver=Driver(release=nasty, error=nasty, devices=[Device(0, nasty)]),
        toolkits=[Toolkit("system", "directory", nasty, nasty)],
        frameworks=[Framework("torch", nasty, cuda=nasty)],
        libraries=[Library(nasty, nasty, nasty, nasty, nasty, [Shadowed(nasty, nasty, nasty)])],
        problems=[Problem(nasty, nasty)],
    )
    finding = Finding(
        "CU303", "error", nasty, [Evidence(nasty, 1, nasty)], nasty, [Command(nasty)], nasty
    )
    return facts, [finding]
