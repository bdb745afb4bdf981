#!/usr/bin/env python3
"""The promises of docs/promises.md, put to the test by real faults, as a table.

    python -m benchmarks.faults                                     some minutes; 50 kills where kills are repeated
    python -m benchmarks.faults --repetitions 10 --only kill        a quick look at tests/faults/test_faults_kill.py
    python -m benchmarks.faults --out results/tables/faults.md

Runs tests/faults through pytest; what needs root or libfaketime is skipped without, and the table says so.
Exit status 1 if a test failed.
"""

import argparse
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

from nero.plans.argparse_types import check_out, whole
from nero.plans.config import ROOT
from nero.report.tables.markdown_format import markdown_line
from nero.runs.provenance import code_in_words

PLACES = {
    path.stem.removeprefix("test_faults_"): path
    for path in sorted((ROOT / "tests" / "faults").glob("test_faults_*.py"))
}
HEADS = ("fault", "test", "repetitions", "lost", "done twice", "outcome")
COUNTS = ("repetitions", "lost", "done_twice")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=whole(1), default=50, help="of each fault that is repeated (default: 50)")
    parser.add_argument("--only", nargs="+", choices=PLACES, default=list(PLACES), help="default: all")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the table there")
    options = parser.parse_args(arguments)
    check_out(parser, options.out)
    begun, code = time.monotonic(), code_in_words()  # as it is before the tests: they take minutes
    cases = _run([PLACES[name] for name in options.only], options.repetitions)
    text = "\n".join(_lines(cases, code, time.monotonic() - begun))
    print(text)
    if options.out:
        options.out.write_text(text + "\n")
    return 1 if any(case.failed for case in cases.values()) else 0


@dataclass
class Case:
    """A test with all of its parameters; `counts` has what it counted, summed up."""

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
        words = [*(["passed"] if self.passed else []), *([f"skipped: {reasons}"] if reasons else [])]
        return ", ".join(words)


def _run(files: Sequence[Path], repetitions: int) -> dict[str, Case]:
    """What became of every test of these files, by file::name; what pytest says goes to stderr."""
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
    """Of a JUnit report, every test by file::name, its parameters put together."""
    cases: dict[str, Case] = {}
    for found in ElementTree.fromstring(xml).iter("testcase"):
        name = found.attrib["name"].partition("[")[0]
        said = {item.attrib["name"]: item.attrib["value"] for item in found.iter("property")}
        file = f"{found.attrib['classname'].replace('.', '/')}.py"
        case = cases.setdefault(f"{file}::{name}", Case(_in_words(name)))
        case.fault = said.get("fault", case.fault)
        reason = found.find("skipped")
        if found.find("failure") is not None or found.find("error") is not None:
            case.failed += 1
        elif reason is not None:
            case.skipped.append(reason.attrib.get("message", ""))
            continue
        else:
            case.passed += 1
        for count in COUNTS:
            if count in said:
                case.counts[count] = case.counts.get(count, 0) + int(said[count])
    return cases


def _in_words(name: str) -> str:
    """For a test that was skipped before it could say which fault it is of."""
    return name.removeprefix("test_").replace("_", " ")


def _lines(cases: Mapping[str, Case], code: str, seconds: float) -> Iterator[str]:
    yield "# Faults, and what became of the runs"
    yield ""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores"
    yield f"{machine}; {code}; {time.strftime('%Y-%m-%d', time.gmtime())}. {_total(cases, seconds)}"
    yield ""
    yield markdown_line(list(HEADS))
    yield markdown_line(["---", "---", "---:", "---:", "---:", "---"])
    for test, case in cases.items():
        counts = [f"{case.counts[count]:,}" if count in case.counts else "" for count in COUNTS]
        yield markdown_line([case.fault, f"`{test}`", *counts, case.outcome])


def _total(cases: Mapping[str, Case], seconds: float) -> str:
    repeated, lost, twice = (sum(case.counts.get(count, 0) for case in cases.values()) for count in COUNTS)
    return f"{repeated:,} faults in {seconds / 60:.0f} minutes: {lost:,} runs lost, {twice:,} done twice."


if __name__ == "__main__":
    sys.exit(main())
