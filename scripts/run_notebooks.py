#!/usr/bin/env python3
"""The same as `nero notebooks`; `--help` describes it."""

import sys

from nero.cli.notebooks import main

if __name__ == "__main__":
    sys.exit(main())
