#!/usr/bin/env python3
"""The same as `nero sample`; `--help` describes it."""

import sys

from nero.checkpoints.sample import main

if __name__ == "__main__":
    sys.exit(main())
