"""Python programs that a test runs in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run(
    source: str, *arguments: str, timeout: float = 120, **environ: str | None
) -> subprocess.CompletedProcess[str]:
    """Runs `source` with this interpreter. Of `environ`, None takes a variable out."""
    env = dict(os.environ)
    for name, value in environ.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def output(source: str, *arguments: str, timeout: float = 120, **environ: str | None) -> str:
    """What a program that must end well, and quietly, prints."""
    done = run(source, *arguments, timeout=timeout, **environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout
