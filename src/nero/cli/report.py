"""Rebuild tables, figures and the page from logged runs. Needs no GPU and trains nothing.

    nero report                        everything in nero.report.catalogue, from results/runs into results
    nero report mine                   an experiment of local/experiments, into local/results
    nero report smoke --page --store results/smoke/runs --out results/smoke
    nero report --check                are the committed tables up to date with the committed runs?

Writes <out>/tables/NAME.{md,csv,tex}, <out>/figures/*.{pdf,svg,png} and, for some figures, their numbers in
<out>/tables/FIGURE.md. A figure without runs is written too and shows what is missing. Without names, or with --page,
also writes the tables `sensitivity` and `costs` over all experiments, and <out>/report.html, one self-contained file
with everything. Updates the README if the report is of the project's own results.

Exit status: 0 if every cell is complete, 1 if some are missing or incomplete (everything is written, and the gaps are
listed) or a damaged run was left out, 2 for an error. With --check nothing is written, and 1 means that a committed
table or the README is missing or out of date; figures are not compared, since their bytes depend on matplotlib's
version.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from nero.atomic import write_atomic
from nero.plans.argparse_types import Parser, folder
from nero.plans.config import ROOT, local_folder
from nero.plans.plan import load_experiment
from nero.plans.stores import COMMITTED, local_runs, named_store, short_path, store_of_experiment
from nero.report import catalogue, files
from nero.report.assembly import PAGE, Report
from nero.report.tables.sheets import for_terminal
from nero.runs.logged import name_left_out
from nero.runs.store import Store

DEFAULT = tuple(catalogue.CATALOGUE)
OWN_RUNS, OWN_RESULTS, OWN_README = COMMITTED, ROOT / "results", ROOT / "README.md"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="nero report", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"an experiment (default: {', '.join(DEFAULT)})")
    parser.add_argument(
        "--store", type=folder, metavar="DIR", help="default: NERO_RUNS, else that of the experiments' sweeps"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="default: results; local/results for your own experiments and trials"
    )
    parser.add_argument(
        "--page", action="store_true", help="also write overviews and the page of the named experiments"
    )
    parser.add_argument("--check", action="store_true", help="compare the tables with those under --out; write nothing")
    options = parser.parse_args(arguments)
    names = dict.fromkeys(options.names or DEFAULT)
    try:
        store = Store(named) if (named := named_store(options.store)) else _common_store(names)
        store = store.without_damaged()
        summaries = store.summaries()
        options.out = options.out or _default_out(names, store)
        report = Report([catalogue.gather(name, store, summaries) for name in names], store, options.out)
        whole = options.page or not options.names
        own = not options.names and options.out.resolve() == OWN_RESULTS and store.root.resolve() == OWN_RUNS
        status = (_check if options.check else write)(report, whole, OWN_README if own else None)
        return name_left_out(store) or status
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _common_store(names: Iterable[str]) -> Store:
    """The one that all of these experiments are logged to."""
    stores = {name: store_of_experiment(load_experiment(name)).root for name in names}
    if len(set(stores.values())) > 1:
        where = ", ".join(f"{name} in {short_path(root)}" for name, root in stores.items())
        raise ValueError(f"these experiments have their runs in different stores: {where}; report them one by one")
    return Store(next(iter(stores.values())))


def _default_out(names: Iterable[str], store: Store) -> Path:
    """A report of the user's own experiments or trials stays out of the committed results."""
    own = store.root == local_runs() or not all(load_experiment(name).is_shipped for name in names)
    return local_folder() / "results" if own else OWN_RESULTS


def write(report: Report, whole: bool, readme: Path | None = None, brief: bool = False) -> int:
    """Write all files, and print the tables; `brief`: only those of the experiments."""
    gaps = []
    for evidence in report.experiments:
        _write_texts(report.texts(evidence), report.out)
        files.write(report.figure_files(evidence), report.out)
        gaps += [f"  {evidence.experiment.name}: {gap}" for gap in evidence.gaps()]
    if whole:
        (files.write if brief else _write_texts)(report.overview_texts(), report.out)
        files.write(report.page(), report.out)
        print(f"everything on one page: {short_path(report.out / PAGE)}")
    if readme:
        write_atomic(readme, report.readme(readme.read_text()).encode())
    if gaps:
        print("\n".join(["missing:", *gaps]))
    return 1 if gaps else 0


def _write_texts(texts: dict[Path, bytes], out: Path) -> None:
    """Write the files and print the tables."""
    files.write(texts, out)
    for path, data in texts.items():
        if path.suffix == ".md":
            print(for_terminal(data.decode()))


def _check(report: Report, whole: bool, readme: Path | None) -> int:
    texts = {path: data for evidence in report.experiments for path, data in report.texts(evidence).items()}
    if whole:
        texts |= report.overview_texts()
    found = files.differences(texts, report.out)
    if readme and report.readme(readme.read_text()) != readme.read_text():
        found.append(f"{readme} is out of date")
    for line in found:
        print(line, file=sys.stderr)
    if not found:
        print(f"{len(texts)} files are up to date: {', '.join(str(path) for path in texts)}")
    return 1 if found else 0
