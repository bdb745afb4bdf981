#!/usr/bin/env python3
"""The same as `nero report`; `--help` describes it."""

import sys

from nero.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["report", *sys.argv[1:]]))
