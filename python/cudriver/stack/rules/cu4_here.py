"""CU409: what is installed is not for the Python, or the machine, that is here."""

from __future__ import annotations

from collections.abc import Iterator

from cudriver.stack.facts import ERROR, FOREIGN, Evidence, Facts, Finding
from cudriver.stack.fixes import fix
from cudriver.stack.rules.finding import finding
from cudriver.stack.versions import cut


def cu409(facts: Facts) -> Iterator[Finding]:
    """Wheels whose tags fit another Python or another machine."""
    env = facts.environment
    here = f"{env.prefix} has Python {cut(env.python, 2)}{'t' * env.tag.endswith('t')}"
    for fault in facts.file_faults:
        dist = facts.distribution(fault.distribution)
        if fault.what == FOREIGN and dist is not None:
            title = (
                f"{dist.name} {dist.version} is a wheel for {fault.why}, {here} on {env.platform}"
            )
            evidence = [fault.evidence, Evidence(fault.file, None, "cannot be loaded here")]
            fixes = [fix.reinstall(facts, dist)]
            yield finding(ERROR, title, evidence, None, fixes, dist.name, fault.file)
