"""Execute the notebooks on the logged runs; the executed copies go to results/notebooks.

    nero notebooks                     all of them
    nero notebooks table1 figures      these
    nero notebooks --out DIR

A notebook that fails does not stop the others, and its copy shows how far it got. Exit status: 0 if all succeeded, 1 if
one failed, 2 for an unknown name.
"""

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nero.plans.argparse_types import Parser, nearest
from nero.plans.config import ROOT

FOLDER = ROOT / "notebooks"
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours of a traceback


def main(arguments: Sequence[str] | None = None) -> int:
    known = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    parser = Parser(prog="nero notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a notebook (default: {', '.join(known)})")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "notebooks", metavar="DIR")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown notebook {unknown[0]}{nearest(unknown[0], known)}; there are {', '.join(known)}")
    options.out.mkdir(parents=True, exist_ok=True)
    paths = [known[name] for name in dict.fromkeys(options.names or known)]
    results = [_execute(path, options.out / path.name) for path in paths]
    return int(not all(results))


def _execute(path: Path, copy: Path) -> bool:
    """Whether it succeeded; prints the error otherwise."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    # The kernel warns that it uses TCP, which does not matter on one machine.
    quiet = ["--IPKernelApp.log_level=ERROR"]
    client = NotebookClient(notebook, resources={"metadata": {"path": str(path.parent)}}, extra_arguments=quiet)
    start, problem = time.perf_counter(), ""
    try:
        client.execute()
    except CellExecutionError as error:
        failed = next(cell for cell in notebook.cells if any(o.output_type == "error" for o in cell.get("outputs", [])))
        # The first arrow of a traceback is at the cell's own line, all there is to see of a failed assertion.
        line = re.search(r"^-+> \d+ (.*)$", ANSI.sub("", error.traceback), re.MULTILINE)
        problem = f"cell {failed.id}: {error.ename}: {error.evalue}" + (f"\n  {line[1]}" if line else "")
    except DeadKernelError as error:
        problem = str(error)
    nbformat.write(notebook, copy)
    print(f"{path.stem}: {time.perf_counter() - start:.0f} s, {'FAILED' if problem else 'done'}: {copy}", flush=True)
    if problem:
        print(f"error: {path.name}, {problem}", file=sys.stderr)
    return not problem
