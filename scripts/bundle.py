#!/usr/bin/env python3
"""Code, wheels and prepared data in parcels, for machines without a network.

    python scripts/bundle.py --out bundle                                       for a machine like this one
    python scripts/bundle.py --out bundle --python 3.12 --platform manylinux_2_28_x86_64 --data mnist cifar10
    python scripts/bundle.py --out bundle --without torch torchvision triton    which the machine has already
    python scripts/bundle.py --list                                             what it would hold; writes nothing

Carry the folder over in whatever way there is, and run there: python3 unpack.py --to DIR --install. The folder holds
nero-bundle.000, .001, ... of at most --parcel-size, SHA256SUMS, contents.json and unpack.py. The code is what git
tracks, with its changes. Packages that --without names are not bundled, nor what only they need: the virtual
environment then shares those of the Python that unpacks it. pip finds the wheels, with whatever it is set up to use.
The same code, data and wheels give the same bytes.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from nero.bundle.making import Order, listing, make_bundle
from nero.bundle.parcels import parse_size
from nero.bundle.refusal import Refusal
from nero.bundle.target import Target, this_platform, this_python
from nero.data.sources import DATASETS, default_root


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bundle"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--python", default=this_python(), metavar="3.X", help="default: %(default)s")
    parser.add_argument("--platform", default=this_platform(), metavar="TAG", help="default: %(default)s")
    parser.add_argument("--parcel-size", default="1G", metavar="SIZE", help="64M, 1.5G or bytes; default: %(default)s")
    parser.add_argument("--extras", default="", metavar="A,B", help="of the project, such as cluster,fid")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="packages that are there already; nvidia-* is fine"
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(DATASETS)}")
    parser.add_argument("--data-root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--runs", action="store_true", help="with the logged runs of results/runs")
    parser.add_argument("--no-wheels", action="store_true", help="code and data only")
    parser.add_argument("--force", action="store_true", help="replace the bundle that is in --out")
    parser.add_argument("--list", action="store_true", help="say what would be bundled, and write nothing")
    options = parser.parse_args(arguments)
    try:
        order = Order(
            target=None if options.no_wheels else Target(options.python, options.platform),
            parcel_size=parse_size(options.parcel_size),
            extras=tuple(filter(None, options.extras.split(","))),
            without=tuple(options.without),
            data=tuple(options.data),
            data_root=options.data_root,
            runs=options.runs,
        )
    except (Refusal, ValueError) as error:
        parser.error(str(error))
    try:
        if options.list:
            with tempfile.TemporaryDirectory() as scratch:
                print("\n".join(listing(order, Path(scratch), _say)))
            return 0
        made = make_bundle(order, options.out, options.force, _say)
    except (Refusal, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    total = sum(file.size for file in made.files)
    print(f"{len(made.files):,} files, {total / 1e6:,.1f} MB, in {made.parcels} parcels: {options.out}")
    print("there: python3 unpack.py --to DIR --install" if made.python else "there: python3 unpack.py --to DIR")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
