#!/usr/bin/env python3
"""Logged runs as data: the same as the command `nero runs`; `--help` says what it does."""

import sys

from nero.cli import runs as runs_command

if __name__ == "__main__":
    sys.exit(runs_command.main(sys.argv[1:]))
