#!/usr/bin/env python3
"""The same as `nero data`; `--help` describes it."""

import sys

from nero.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["data", *sys.argv[1:]]))
