#!/usr/bin/env python3
"""The same as `nero translate`; `--help` describes it."""

import sys

from nero.checkpoints.translate import main

if __name__ == "__main__":
    sys.exit(main())
