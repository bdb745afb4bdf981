#!/usr/bin/env python3
"""The same as `nero theory`; `--help` describes it."""

import sys

from nero.cli.theory import main

if __name__ == "__main__":
    sys.exit(main())
