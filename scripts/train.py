#!/usr/bin/env python3
"""The same as `nero train`; `--help` describes it."""

import sys

from nero.cli.train import main

if __name__ == "__main__":
    sys.exit(main())
