#!/usr/bin/env python3
"""The same as `nero play`; `--help` describes it."""

import sys

from nero.checkpoints.play import main

if __name__ == "__main__":
    sys.exit(main())
