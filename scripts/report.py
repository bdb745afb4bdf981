#!/usr/bin/env python3
"""Rebuild tables and figures from logged runs. Needs no GPU and runs nothing.

    python scripts/report.py                        all that nero.report.catalogue names: from results/runs into results
    python scripts/report.py smoke --store results/smoke/runs --out results/smoke
    python scripts/report.py --check                are the committed tables what the committed runs give?

Writes <out>/tables/NAME.{md,csv,tex}, <out>/figures/*.{pdf,svg,png} and, of some figures, <out>/tables/FIGURE.md with
their curves in numbers. A figure without any run is written too: it says what is missing. Exit status: 0 when every
cell is there, 1 when some are missing or incomplete (all the same written, and said), 2 for an error. With --check
nothing is written, and 1 means that a committed table is absent or differs; figures are not compared, since their bytes
depend on matplotlib's version.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nero.plans.config import ROOT
from nero.report import catalogue, files
from nero.runs.store import Store

DEFAULT = tuple(catalogue.CATALOGUE)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"an experiment (default: {', '.join(DEFAULT)})")
    parser.add_argument("--store", metavar="DIR", help="default: NERO_RUNS, else results/runs")
    parser.add_argument("--out", type=Path, default=ROOT / "results", metavar="DIR", help="default: results")
    parser.add_argument("--check", action="store_true", help="compare the tables with those under --out; write nothing")
    options = parser.parse_args(arguments)
    store = Store(options.store) if options.store else catalogue.default_store()
    try:
        summaries = store.summaries()
        names = dict.fromkeys(options.names or DEFAULT)
        experiments = [catalogue.gather(name, store, summaries) for name in names]
        return _check(experiments, options.out) if options.check else _write(experiments, options.out)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _write(experiments: Sequence[catalogue.Evidence], out: Path) -> int:
    gaps = []
    for evidence in experiments:
        texts = _texts(evidence)
        files.write(texts | files.figure_files(catalogue.make_figures(evidence)), out)
        for path, data in texts.items():
            if path.suffix == ".md":
                print(data.decode())
        gaps += [f"  {evidence.experiment.name}: {gap}" for gap in evidence.gaps()]
    if gaps:
        print("\n".join(["missing:", *gaps]))
    return 1 if gaps else 0


def _check(experiments: Sequence[catalogue.Evidence], out: Path) -> int:
    texts = {path: data for evidence in experiments for path, data in _texts(evidence).items()}
    found = files.differences(texts, out)
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"{len(texts)} files are what the runs give: {', '.join(str(path) for path in texts)}")
    return 1 if found else 0


def _texts(evidence: catalogue.Evidence) -> dict[Path, bytes]:
    """All that is reported in words and numbers."""
    return files.table_files(catalogue.make_table(evidence)) | files.number_files(catalogue.make_numbers(evidence))


if __name__ == "__main__":
    sys.exit(main())
