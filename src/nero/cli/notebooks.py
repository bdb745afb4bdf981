"""Execute the notebooks on the logged runs; the executed copies go to results/notebooks.

    nero notebooks                     all of them
    nero notebooks table1 figures      these
    nero notebooks --out DIR
    nero notebooks --in-place          write outputs into the notebooks themselves, from the committed runs, and the
                                       README's figure of turning neurons

A notebook that fails does not stop the others, and its copy shows how far it got; in place it stays as it was. Exit
status: 0 if all succeeded, 1 if one failed, 2 for an unknown name.
"""

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import TYPE_CHECKING

from nero.plans.argparse_types import Parser, nearest
from nero.plans.config import ROOT

if TYPE_CHECKING:
    from nbformat import NotebookNode

FOLDER = ROOT / "notebooks"
FIGURES = ROOT / "results" / "figures"
ANSI = re.compile(r"\x1b\[[0-9;]*m")  # colours of a traceback
ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of an object in memory


def main(arguments: Sequence[str] | None = None) -> int:
    known = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    parser = Parser(prog="nero notebooks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"a notebook (default: {', '.join(known)})")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, default=ROOT / "results" / "notebooks", metavar="DIR")
    where.add_argument(
        "--in-place", action="store_true", help="write outputs into the notebooks, as they are committed"
    )
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.names if name not in known]:
        parser.error(f"unknown notebook {unknown[0]}{nearest(unknown[0], known)}; there are {', '.join(known)}")
    out, environment = (FOLDER, _committed()) if options.in_place else (options.out, dict(os.environ))
    out.mkdir(parents=True, exist_ok=True)
    paths = [known[name] for name in dict.fromkeys(options.names or known)]
    results = [_execute(path, out / path.name, environment) for path in paths]
    return int(not all(results))


def _committed() -> dict[str, str]:
    """The environment of a notebook that shows the committed runs, and writes the README's figure."""
    others = {name: value for name, value in os.environ.items() if name != "NERO_RUNS"}
    return {**others, "NERO_FIGURES": str(FIGURES)}


def _execute(path: Path, copy: Path, environment: Mapping[str, str]) -> bool:
    """Whether it succeeded; prints the error otherwise."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, DeadKernelError

    notebook = nbformat.read(path, as_version=4)
    metadata = deepcopy(notebook.metadata)
    for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.update(outputs=[], execution_count=None)  # those of cells after a failure would look new
    # The kernel warns that it uses TCP, which does not matter on one machine.
    quiet = ["--IPKernelApp.log_level=ERROR"]
    folder = {"metadata": {"path": str(path.parent)}}
    client = NotebookClient(
        notebook, resources=folder, extra_arguments=quiet, record_timing=False, coalesce_streams=True
    )
    start, problem = time.perf_counter(), ""
    try:
        client.execute(env=environment)
    except CellExecutionError as error:
        failed = next(cell for cell in notebook.cells if any(o.output_type == "error" for o in cell.get("outputs", [])))
        # The first arrow of a traceback is at the cell's own line, all there is to see of a failed assertion.
        line = re.search(r"^-+> \d+ (.*)$", ANSI.sub("", error.traceback), re.MULTILINE)
        problem = f"cell {failed.id}: {error.ename}: {error.evalue}" + (f"\n  {line[1]}" if line else "")
    except DeadKernelError as error:
        problem = str(error)
    if copy != path or not problem:
        nbformat.write(_reproducible(notebook, metadata), copy)
    print(f"{path.stem}: {time.perf_counter() - start:.0f} s, {'FAILED' if problem else 'done'}: {copy}", flush=True)
    if problem:
        print(f"error: {path.name}, {problem}", file=sys.stderr)
    return not problem


def _reproducible(notebook: "NotebookNode", metadata: "NotebookNode") -> "NotebookNode":
    """Without what differs from one execution, or one machine, to the next."""
    notebook.metadata = metadata  # the kernel's adds the version of Python
    for output in (output for cell in notebook.cells for output in cell.get("outputs", [])):
        if "text/plain" in output.get("data", {}):
            output.data["text/plain"] = ADDRESS.sub("", output.data["text/plain"])
    return notebook
