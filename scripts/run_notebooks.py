"""Execute every notebook on the logged runs; the executed copies go to results/notebooks.

python scripts/run_notebooks.py [--out results/notebooks]
"""

import argparse
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from nero.plans.config import ROOT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "notebooks")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}).execute()
        nbformat.write(notebook, args.out / path.name)
        print(args.out / path.name)


if __name__ == "__main__":
    main()
