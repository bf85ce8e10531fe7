"""Ends a CI job whose environment cannot work on the machines that it will run on.

    python check_for_ci.py [PREFIX] [--driver 535.104.05] [--gpu 9.0]

Status 1: an import or every use would fail there. The findings are printed as GitHub shows them.
"""

import argparse
import sys

from cudriver import stack


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prefix", nargs="?", default=sys.prefix)
    parser.add_argument("--driver", help="the driver release of the machines")
    parser.add_argument("--gpu", action="append", help="a compute capability; may be repeated")
    given = parser.parse_args()
    report = stack.inspect(
        given.prefix, probe_driver=False, assume_driver=given.driver, assume_gpus=given.gpu
    )
    print(report)
    for finding in report.findings:
        level = {"error": "error", "warning": "warning"}.get(finding.severity, "notice")
        print(f"::{level} title={finding.rule}::{finding.title}")
    return 1 if report.verdict == "mismatch" else 0


if __name__ == "__main__":
    sys.exit(main())
