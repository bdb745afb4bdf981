"""The command `nero`: the first word selects a subcommand, which parses the rest."""

import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import nero
from nero.plans.argparse_types import nearest

# Subcommand: its module, imported only when it is used, its function if that is not `main`, and a summary.
COMMANDS = {
    "train": ("nero.cli.train", "train one run"),
    "sweep": ("nero.cli.sweep", "train what is pending of an experiment, or any Hydra sweep"),
    "compare": ("nero.cli.compare", "compare an optimiser of your own with others, on the paper's tasks"),
    "plan": ("nero.cli.plan", "list what is pending of an experiment, and how long it should take"),
    "report": ("nero.cli.report", "make tables, figures and the page from logged runs"),
    "runs": ("nero.cli.runs", "list, compare, export, check, import and mirror logged runs"),
    "data": ("nero.cli.data", "download and check data sets"),
    "theory": ("nero.cli.theory", "measure the paper's theory on runs"),
    "bundle": ("nero.cli.bundle", "pack code, wheels and data for machines without a network"),
    "translate": ("nero.cli.trained:translate", "translate with a trained network, and measure BLEU"),
    "generate": ("nero.cli.trained:generate", "write text with a trained language model"),
    "play": ("nero.cli.trained:play", "let a trained policy play, and write an animation"),
    "sample": ("nero.cli.trained:sample", "draw images with a trained generator, and measure FID"),
    "notebooks": ("nero.cli.notebooks", "execute the notebooks on the logged runs"),
}
CLONE = Path(__file__).resolve().parents[3]
SUITE = "clone the project and run `make setup`, or there: pip install -c constraints.txt -e '.[suite]'"


def main(arguments: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words and words[0] in COMMANDS:
        try:
            return _run(*words)
        except KeyboardInterrupt:
            return _error("interrupted", 130)
        except Exception as error:
            from nero.plans.schema import ConfigError

            if os.environ.get("NERO_DEBUG", "") not in ("", "0"):
                raise
            if isinstance(error, ConfigError):
                return _error(f"error: {error}", 1)
            message = " ".join(f"{type(error).__name__}: {error}".split())
            return _error(f"error: {message} (NERO_DEBUG=1 shows the traceback)", 1)
    summaries = [f"  {name:<11}{summary}" for name, (_, summary) in COMMANDS.items()]
    usage = "\n".join(["usage: nero COMMAND ...", "       nero --version", "", *summaries, "", "nero COMMAND --help"])
    if words and words[0] in ("-h", "--help"):
        print(usage)
        return 0
    if words and words[0] == "--version":
        print(f"nero {nero.__version__}")
        return 0
    return _error(_unknown(words[0]) if words else usage, 2)


@contextmanager
def exit_on_interrupt() -> Iterator[None]:
    """Around imports: Ctrl-C ends the process at once, since an import may lose or wrap a KeyboardInterrupt."""
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def end(number: int, frame: object) -> None:
        os.write(2, b"interrupted\n")
        os._exit(130)

    signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _run(name: str, *words: str) -> int:
    if sys.platform == "win32":
        return _error("error: the experiments run on Linux and macOS only: they lock files with fcntl", 1)
    if not (CLONE / "configs" / "config.yaml").is_file():
        return _error(f"error: nero {name} needs the configs of a clone, and this is an installed package: {SUITE}", 1)
    path, _, function = COMMANDS[name][0].partition(":")
    try:
        with exit_on_interrupt():
            importlib.import_module("hydra")  # first: without the suite, torch may print warnings of its own
            module = importlib.import_module(path)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == nero.__name__:
            raise
        return _error(f"error: nero {name} needs the extra suite (there is no package {package} here): {SUITE}", 1)
    return int(getattr(module, function or "main")(list(words)))


def _unknown(word: str) -> str:
    kind = "option" if word.startswith("-") else "command"
    hint = nearest(word, [*COMMANDS, "--help", "--version"]) or f"; choose from: {', '.join(COMMANDS)}"
    return f"error: unknown {kind} {word}{hint}"


def _error(message: str, status: int) -> int:
    print(message, file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())
