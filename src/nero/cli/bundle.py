"""Put code, wheels and prepared data into archives, for machines without a network.

    nero bundle --out bundle                                       for a machine like this one
    nero bundle --out bundle --python 3.12 --platform manylinux_2_28_x86_64 --data mnist cifar10
    nero bundle --out bundle --without torch torchvision triton    which the machine already has
    nero bundle --list                                             show the contents; write nothing

Copy the folder to the machine and run there: python3 unpack.py --to DIR --install. The folder has nero-bundle.000,
.001, ... of at most --archive-size, SHA256SUMS, contents.json and unpack.py. The code is what git tracks, with its
changes. Packages that --without names are left out with everything that only they need: the virtual environment then
shares those of the Python that unpacks it. uv resolves the wheels (it reads UV_DEFAULT_INDEX and the like), pip
downloads them (PIP_INDEX_URL and the like). The same code, data and wheels give the same bytes.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging import tags

from nero.bundle.making import Spec, listing, make_bundle, parse_size
from nero.bundle.wheels import BundleError, check_target
from nero.data.sources import DATASETS, default_root
from nero.plans.argparse_types import Parser


def main(arguments: Sequence[str] | None = None) -> int:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    platform = next(tag for tag in tags.platform_tags() if not tag.startswith("linux_"))
    parser = Parser(prog="nero bundle", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("bundle"), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--python", default=python, metavar="3.X", help="default: %(default)s")
    parser.add_argument("--platform", default=platform, metavar="TAG", help="default: %(default)s")
    parser.add_argument("--archive-size", default="1G", metavar="SIZE", help="64M, 1.5G or bytes; default: %(default)s")
    parser.add_argument("--extras", default="", metavar="A,B", help="of the project beside suite, such as cluster,ray")
    parser.add_argument(
        "--without", nargs="+", default=[], metavar="NAME", help="packages that are there already; or nvidia-*"
    )
    parser.add_argument("--data", nargs="+", default=[], metavar="NAME", help=f"of {', '.join(DATASETS)}")
    parser.add_argument("--data-root", type=Path, default=default_root(), metavar="DIR", help="default: %(default)s")
    parser.add_argument("--runs", action="store_true", help="with the logged runs of results/runs")
    parser.add_argument("--no-wheels", action="store_true", help="code and data only")
    parser.add_argument("--force", action="store_true", help="replace the bundle in --out")
    parser.add_argument("--list", action="store_true", help="show what would be bundled, and write nothing")
    options = parser.parse_args(arguments)
    try:
        if not options.no_wheels:
            check_target(options.python, options.platform)
        spec = Spec(
            python=None if options.no_wheels else options.python,
            platform=options.platform,
            archive_size=parse_size(options.archive_size),
            extras=("suite", *filter(None, options.extras.split(","))),
            without=tuple(options.without),
            data=tuple(options.data),
            data_root=options.data_root,
            runs=options.runs,
        )
    except (BundleError, ValueError) as error:
        parser.error(str(error))
    try:
        if options.list:
            with tempfile.TemporaryDirectory() as scratch:
                print("\n".join(listing(spec, Path(scratch), _log)))
            return 0
        contents = make_bundle(spec, options.out, options.force, _log)
    except (BundleError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    files, size = contents["files"], sum(file["size"] for file in contents["files"])
    print(f"{len(files):,} files, {size / 1e6:,.1f} MB, in {contents['archives']} archives: {options.out}")
    print(f"on the other machine: python3 unpack.py --to DIR{' --install' if spec.python else ''}")
    return 0


def _log(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
