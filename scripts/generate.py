#!/usr/bin/env python3
"""The same as `nero generate`; `--help` describes it."""

import sys

from nero.checkpoints.generate import main

if __name__ == "__main__":
    sys.exit(main())
