"""Every command of a fix takes hostile names as words, not as shell."""

import shlex
import subprocess

import pytest
from facts import facts

from cudriver.stack.facts import Distribution, Environment, Evidence, Requirement
from cudriver.stack.fixes import fix
from cudriver.stack.record import put
from cudriver.stack.rules import cu4_pins

NAME = "x;touch owned $(id) `id` 'q' \"d\" | & > ~ *\n#"
INSTALLERS = ["pip", "uv", "pipx", "conda", "mamba", "micromamba", "pixi"]


def words(command, folder):
    """The words that a shell makes of a command."""
    done = subprocess.run(
        ["bash", "-c", f"print() {{ printf '%s\\0' \"$@\"; }}; print {command}"],
        cwd=folder, capture_output=True, text=True, errors="surrogateescape", check=True,
    )  # fmt: skip
    return done.stdout.split("\0")[:-1]


@pytest.mark.parametrize("tool", INSTALLERS)
@pytest.mark.parametrize("managed", [False, True])
def test_names_are_words(tmp_path, tool, managed):
    kind = "conda" if tool in fix.CONDA else "venv"
    env = Environment(f"/opt/{NAME}", kind, executable=f"/opt/{NAME}/bin/python", installer=tool)
    put(env, managed=managed)
    dist = Distribution(NAME, f"1.0{NAME}", "wheel", f"/s/{NAME}", "/s", installer=tool)
    put(dist, conda_name=NAME)
    of = facts(environment=env, distributions=[dist])
    commands = [
        fix.install(env, f"{NAME}==1", by=tool, index=f"https://x/{NAME}", again=True, alone=True),
        fix.install(env, NAME, by=tool),
        fix.uninstall(env, dist),
        fix.reinstall(of, dist),
        fix.without("LD_LIBRARY_PATH", f"/a:/{NAME}", ["/a"]),
    ]
    for command in commands:
        assert words(command, tmp_path) == shlex.split(command)


def test_the_pins_of_packages_are_words():
    by = Distribution(NAME, "1", "wheel", "/s/x", "/s", installer="pip")
    by.requires.append(Requirement("nvidia-x", f"=={NAME}", Evidence("/s/x/METADATA", 3)))
    by.requires.append(Requirement("nvidia-y", "==1; touch x", Evidence("/s/x/METADATA", 4)))
    for finding in cu4_pins.cu402(facts(distributions=[by])):
        for command in finding.fix:
            assert ";" not in {*shlex.shlex(command, posix=True, punctuation_chars=True)}
