"""The command `nero`: the first word selects a subcommand, which parses the rest."""

import importlib
import sys
from collections.abc import Sequence

# Subcommand: its module, imported only when it is used, and a summary.
COMMANDS = {
    "runs": ("nero.cli.runs", "list, compare, export, check, import and mirror logged runs"),
    "theory": ("nero.cli.theory", "measure the paper's theory on runs"),
    "translate": ("nero.checkpoints.translate", "translate with a trained network, and measure BLEU"),
    "generate": ("nero.checkpoints.generate", "write text with a trained language model"),
    "play": ("nero.checkpoints.play", "let a trained policy play, and write an animation"),
    "sample": ("nero.checkpoints.sample", "draw images with a trained generator, and measure FID"),
    "notebooks": ("nero.cli.notebooks", "execute the notebooks on the logged runs"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        return int(importlib.import_module(COMMANDS[words[0]][0]).main(words[1:]))
    summaries = [f"  {name:<11}{summary}" for name, (_, summary) in COMMANDS.items()]
    usage = "\n".join(["usage: nero COMMAND ...", "", *summaries])
    if words and words[0] in ("-h", "--help"):
        print(usage)
        return 0
    unknown = f"error: unknown command {words[0]!r}; choose from: {', '.join(COMMANDS)}" if words else usage
    print(unknown, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
