#!/usr/bin/env python3
"""Test the promises of docs/promises.md by injecting real faults; prints a table.

    python -m benchmarks.faults                                     half an hour; more than 1,000 random kills
    python -m benchmarks.faults --repetitions 10 --only kill        only tests/faults/test_faults_kill.py
    python -m benchmarks.faults --out results/tables/faults.md

Runs tests/faults with pytest. Tests that need root or libfaketime are skipped without; the table lists them.
Exit status 1 if a test failed.
"""

import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.tables import benchmark_parser, code_in_words, print_lines, table_head
from nero.plans.argparse_types import check_out, positive_int
from nero.plans.config import ROOT
from nero.report.tables.sheets import markdown_line

FILES = {
    path.stem.removeprefix("test_faults_"): path
    for path in sorted((ROOT / "tests" / "faults").glob("test_faults_*.py"))
}
HEADS = ("fault", "test", "repetitions", "lost", "done twice", "outcome")
COUNTS = ("repetitions", "lost", "done_twice")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = benchmark_parser(__doc__)
    parser.add_argument(
        "--repetitions",
        type=positive_int,
        default=300,
        help="kills of runs; those of sweeps, imports and reports are a half to a tenth of that (default: 300)",
    )
    parser.add_argument("--only", nargs="+", choices=FILES, default=list(FILES), help="default: all")
    options = parser.parse_args(arguments)
    check_out(parser, options.out)
    start, code = time.monotonic(), code_in_words()  # before the tests, which take minutes
    cases = _run([FILES[name] for name in options.only], options.repetitions)
    print_lines(_lines(cases, code, time.monotonic() - start), options.out)
    return 1 if any(case.failed for case in cases.values()) else 0


@dataclass
class Case:
    """A test with all of its parameters; `counts` are sums over them."""

    fault: str
    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)  # why
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def outcome(self) -> str:
        if self.failed:
            return f"**{self.failed} failed**"
        reasons = "; ".join(dict.fromkeys(self.skipped))
        return ", ".join([*(["passed"] if self.passed else []), *([f"skipped: {reasons}"] if reasons else [])])


def _run(files: Sequence[Path], repetitions: int) -> dict[str, Case]:
    """Results of all tests of these files, by file::name; the output of pytest goes to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        words = [*map(str, files), f"--junitxml={report}", "-o", "junit_family=xunit1", "-p", "no:cacheprovider", "-q"]
        environment = {**os.environ, "NERO_FAULT_REPETITIONS": str(repetitions)}
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=environment, stdout=sys.stderr.fileno()
        )
        if done.returncode not in (0, 1) or not report.exists():  # 1: a test failed
            sys.exit(f"error: pytest ended with status {done.returncode}")
        return read_report(report.read_text())


def read_report(xml: str) -> dict[str, Case]:
    """The tests of a JUnit report by file::name; parametrised tests are merged."""
    cases: dict[str, Case] = {}
    for found in ElementTree.fromstring(xml).iter("testcase"):
        name = found.attrib["name"].partition("[")[0]
        properties = {item.attrib["name"]: item.attrib["value"] for item in found.iter("property")}
        file = f"{found.attrib['classname'].replace('.', '/')}.py"
        case = cases.setdefault(f"{file}::{name}", Case(name.removeprefix("test_").replace("_", " ")))
        case.fault = properties.get("fault", case.fault)
        reason = found.find("skipped")
        if found.find("failure") is not None or found.find("error") is not None:
            case.failed += 1
        elif reason is not None:
            case.skipped.append(reason.attrib.get("message", ""))
            continue
        else:
            case.passed += 1
        for count in COUNTS:
            if count in properties:
                case.counts[count] = case.counts.get(count, 0) + int(properties[count])
    return cases


def _lines(cases: Mapping[str, Case], code: str, seconds: float) -> Iterator[str]:
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"
    repeated, lost, twice = (sum(case.counts.get(count, 0) for case in cases.values()) for count in COUNTS)
    kills = sum(case.counts.get("repetitions", 0) for case in cases.values() if case.fault.startswith("SIGKILL"))
    faults = f"{repeated:,} faults in {seconds / 60:.0f} minutes, {kills:,} of them SIGKILLs"
    total = f"{faults}: {lost:,} runs lost, {twice:,} done twice."
    about = f"{machine}; {code}; {time.strftime('%Y-%m-%d', time.gmtime())}. {total}"
    yield from table_head("Injected faults and their outcomes", about, HEADS, numbers=(2, 3, 4))
    for test, case in cases.items():
        counts = [f"{case.counts[count]:,}" if count in case.counts else "" for count in COUNTS]
        yield markdown_line([case.fault, f"`{test}`", *counts, case.outcome])


if __name__ == "__main__":
    sys.exit(main())
