"""What is printed as a fix, whatever the environment: it can be run there, and takes nothing away
that the user asked for. All cases of the rules, as each kind of environment would have them.
"""

import re
import shlex
import subprocess

import cases
import pytest
from facts import PREFIX, PYTHON, but, facts

import casekit
from cudriver.stack.command import Command, parted
from cudriver.stack.fixes import fix
from cudriver.stack.rules import judge, registry

CASES = [(rule, name) for rule in registry() for name in casekit.read(cases.path(rule))[1]]
KINDS = {
    "venv": {},
    "venv without pip": {"lacks_pip": True},
    "uv": {"kind": "uv", "installer": "uv", "lacks_pip": True},
    "conda": {"kind": "conda", "installer": "conda"},
    "Debian's": {"kind": "system", "managed": True},
}
SYSTEM = {"sudo", "export", "unset", "rm", "ls", "grep", "echo", "nvidia-smi", "python3"}


def as_kind(of, kind):
    """The facts in an environment of another kind, its packages installed as there."""
    env = but(of.environment, **KINDS[kind])
    dists = of.distributions
    if kind == "conda":
        dists = [but(dist, kind="conda", installer="conda") for dist in dists]
    elif kind == "Debian's":
        dists = [but(dist, location=fix.DPKG, installer="debian") for dist in dists]
    elif kind == "uv":
        dists = [but(dist, installer="uv" if dist.kind == "wheel" else None) for dist in dists]
    return but(of, environment=env, distributions=dists)


def parts(command):
    """The words of each program that a command runs."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="&|;")
    lexer.whitespace_split = True
    found = [[]]
    for word in lexer:
        found.append([]) if word in ("&&", "||", "|", ";") else found[-1].append(word)
    return [words for words in found if words]


def check(of, findings):
    """The properties of all that is printed."""
    for finding in findings:
        assert all(type(command) is Command for command in finding.fix)
        assert not finding.advice or finding.advice.endswith("."), finding.advice
        installs = [c for c in finding.fix if re.search(r" (install|add) ", c)]
        for command in finding.fix:
            programs = parts(command)
            for words in programs:
                check_program(of, words, programs, command)
            if command.removes and any(f.distribution == command.removes for f in of.frameworks):
                assert installs, f"{finding.title}: {command} takes away what was asked for"
            owned = {fix.bare(name) for name in command.installs} | {command.removes} - {""}
            for dist in of.distributions:
                if dist.name in owned and " pip " in command:
                    assert dist.location != fix.DPKG, f"{command}: dpkg owns {dist.name}"
                    assert dist.kind != "conda" or not command.removes, command


def check_program(of, words, programs, command):
    """The program is there, by the environment's own account."""
    env = of.environment
    known = (
        SYSTEM | {PYTHON, env.executable} | ({env.installer} if env.installer != "pip" else set())
    )
    known |= {dist.installer for dist in of.distributions} & {"uv", *fix.CONDA}
    known |= {"uv"} if env.kind == "uv" else set()
    program = re.sub(rf"^{re.escape(PREFIX)}/bin/python\S*", PYTHON, words[0])
    made = re.fullmatch(r"python3\.\d+|[\w-]+-env/bin/python|/.*/bin/patchelf", program)
    assert program in known or made, f"{command}: {program}"
    if words[1:3] == ["-m", "pip"] and program == PYTHON and env.lacks_pip:
        assert programs[0][1:3] == ["-m", "ensurepip"], command


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_rules_print(kind):
    told = []
    for rule, name in CASES:
        of = as_kind(cases.make(rule, casekit.read(cases.path(rule))[1][name]), kind)
        found = list(registry()[rule](of))
        check(of, found)
        told += [command for finding in found for command in finding.fix]
    assert len(told) > 100
    done = subprocess.run(["sh", "-n"], input="\n".join(told), text=True, capture_output=True)
    assert done.stderr == ""


def test_what_is_made_as_a_command_is_one_whatever_it_ends_in():
    command = fix.install(but(facts().environment, executable="/e/python"), "./here.")
    assert parted([command, "Do this.", "ls /x"]) == ([command, "ls /x"], "Do this.")


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_printed_once_it_is_tried(kind):
    for name in cases.tried()[1]:
        of = as_kind(cases.of_fixes(name), kind)
        found = judge(of)
        check(of, found)
        for finding in found:
            new = [c for c in finding.fix if " venv " in c or " create " in c]
            assert not (new and finding.proven), f"{finding.fix}: a pin does"
