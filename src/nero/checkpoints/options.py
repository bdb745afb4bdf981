"""Words on a command line that every look at a trained run shares."""

import argparse
import os
from pathlib import Path

from nero.data.sources import default_root


def run_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser with the run, where it is looked up, where its data are, and the device."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    store = os.environ.get("NERO_RUNS") or "results/runs"
    parser.add_argument("run", metavar="RUN", help="a run's directory, or its id in the store")
    parser.add_argument("--store", default=store, metavar="DIR", help="where ids are looked up (default: %(default)s)")
    parser.add_argument("--data-root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    parser.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], default="auto", help="default: a GPU if there is one"
    )
    return parser
