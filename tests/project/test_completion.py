"""The scripts of `cudriver completion`, run by the shells they are for."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from cudriver import cli
from cudriver.cli import completion

pytestmark = pytest.mark.static


def script(shell: str) -> str:
    return completion.SHELLS[shell](completion.commands())


def answer(shell: str, program: str) -> list[str]:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run([path, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout.splitlines()


def bash(line: str) -> list[str]:
    words = line.split(" ")
    return answer(
        "bash",
        f"{script('bash')}\ncompopt() {{ :; }}\nCOMP_WORDS=({' '.join(words[:-1])} '{words[-1]}')\n"
        f'COMP_CWORD={len(words) - 1}; _cudriver; printf "%s\\n" "${{COMPREPLY[@]}}"',
    )


def fish(line: str) -> list[str]:
    said = answer("fish", f"{script('fish')}\ncomplete -C '{line}'")
    return [text.split("\t")[0] for text in said]


@pytest.mark.parametrize("complete", [bash, fish])
def test_what_a_shell_offers(complete, tmp_path) -> None:
    assert set(cli.COMMANDS) <= set(complete("cudriver "))
    assert complete("cudriver chec") == ["check"]
    assert complete("cudriver check --html-") in ([], [""])
    assert sorted(complete("cudriver check --mat")) == ["--match", "--match-level"]
    assert complete("cudriver check --match s") == ["system"]
    assert sorted(complete("cudriver check --match-level m")) == ["major", "minor"]
    assert complete("cudriver explain CU303") == ["CU303"]
    assert complete("cudriver check --select CU30") == [f"CU30{number}" for number in range(1, 7)]
    assert complete("cudriver check --ignore EX1") in ([], [""])
    of_a_list = complete("cudriver check --select CU303,EX,CU502,CU50")
    assert of_a_list == [f"CU303,EX,CU502,CU50{number}" for number in range(1, 4)]
    assert complete("cudriver which libcudart") == ["libcudart"]
    assert complete("cudriver which nvJ") == ["nvJitLink"]
    assert complete("cudriver plan num") == ["numba-cuda"]
    assert complete("cudriver plan torch tenso") == ["tensorflow"]
    assert complete("cudriver plan torch --gpu H10") == ["H100"]
    assert complete("cudriver plan torch --gpu 9.") == ["9.0"]
    assert complete("cudriver check --assume-gpu 12.") == ["12.1", "12.0"]
    assert complete("cudriver check --needs torch,ja") == ["torch,jax"]
    assert complete("cudriver plan --constraints cupy-14-cuda13") == ["cupy-14-cuda13"]
    assert complete("cudriver bench --device H") in ([], [""])
    assert sorted(complete("cudriver completion ")) == ["bash", "fish", "zsh"]
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (only,) = complete(f"cudriver check {tmp_path}/f")
    assert only.rstrip("/") == f"{tmp_path}/folder"
    assert len(complete(f"cudriver check --html {tmp_path}/f")) == 2
    assert complete("cudriver bench --rounds ") in ([], [""])


def test_every_option_is_in_each_script() -> None:
    texts = {shell: script(shell) for shell in completion.SHELLS}
    for words in completion.commands().values():
        for flag in (flag for one in words for flag in one.flags):
            assert flag in texts["bash"]
            assert f"{flag}[" in texts["zsh"]
            assert f"{'-l' if flag[1] == '-' else '-s'} {flag.lstrip('-')} " in texts["fish"]


@pytest.mark.parametrize("shell", sorted(completion.SHELLS))
def test_a_shell_takes_its_script(shell: str) -> None:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "cudriver", "completion", shell],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == script(shell) + "\n"
    read = subprocess.run([path, "-n"], input=done.stdout, capture_output=True, text=True)
    assert (read.returncode, read.stderr) == (0, "")


def test_a_shell_that_is_none_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["completion", "tcsh"]) == 2
    assert "tcsh" in capsys.readouterr().err
