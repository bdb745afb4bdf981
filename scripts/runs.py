#!/usr/bin/env python3
"""The same as `nero runs`; `--help` describes it."""

import sys

from nero.cli.runs import main

if __name__ == "__main__":
    sys.exit(main())
