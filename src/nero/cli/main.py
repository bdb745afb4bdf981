"""The command `nero`: one word says which part of the project is meant, and that part reads the rest."""

import sys
from collections.abc import Callable, Sequence

from nero.cli import runs as runs_command

COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "runs": (runs_command.main, "list, compare, export, check, import and mirror logged runs"),
}
HELP = ("-h", "--help")


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        return COMMANDS[words[0]][0](words[1:])
    usage = "\n".join(["usage: nero COMMAND ...", "", *(f"  {name:<8}{what}" for name, (_, what) in COMMANDS.items())])
    if words and words[0] in HELP:
        print(usage)
        return 0
    said = f"error: there is no command {words[0]!r}; there are: {', '.join(COMMANDS)}" if words else usage
    print(said, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
