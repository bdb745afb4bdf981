"""The text files of a run directory: strict JSON, appended line by line, and YAML. See `nero.runs.store`.

They may come from elsewhere: whatever is beyond a limit here, which no run of ours comes near, is refused before it
costs time or memory.
"""

import json
import math
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from nero.atomic import append_whole, open_regular

# Safe YAML; the C version, where PyYAML has it, is ten times faster.
LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# Bytes that are read of each file; of others, such as checkpoints, MOST_BYTES_OF_OTHERS.
MOST_BYTES = {
    "config.yaml": 1 << 20,
    "summary.json": 16 << 20,
    "provenance.jsonl": 64 << 20,
    "metrics.jsonl": 1 << 30,
    "checkpoint.json": 1 << 20,
    "lock": 4096,
}
MOST_BYTES_OF_OTHERS = 64 << 30
LONGEST_LINE = 16 << 20  # bytes
DEEPEST = 16  # lists and mappings within each other
LARGEST = 2**63 - 1  # of integers: what data frames hold


def encode(record: Mapping[str, Any], **options: Any) -> bytes:
    """Strict JSON and a newline. `options` are those of `json.dumps`."""
    return (json.dumps(_finite(dict(record)), allow_nan=False, **options) + "\n").encode()


def _finite(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null, which readers treat as missing."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def parse(data: bytes) -> Any:
    """The value of strict JSON in UTF-8; ValueError, of one line, for anything else."""
    if len(data) > LONGEST_LINE:
        raise ValueError(f"it has {len(data):,} bytes, and at most {LONGEST_LINE:,} are read")
    text = _decode(data)
    try:
        value = json.loads(text, **_STRICT)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has half of a character") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg.lower()} at character {error.pos})") from None
    values_within(value)
    return value


def parse_yaml(data: bytes) -> Any:
    """The value of YAML in UTF-8, without aliases and tags; ValueError, of one line, for anything else."""
    text = _decode(data)
    try:
        if _MAY_BE_NESTED.search(text):
            _check_events(text)
        value = yaml.load(text, Loader=LOADER)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""
        raise ValueError(f"it is not YAML ({getattr(error, 'problem', None) or 'invalid'}{where})") from None
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    for item in values_within(value):
        if type(item) is int and abs(item) > LARGEST:
            raise ValueError(_TOO_LONG)
    return value


class _Dumper(yaml.SafeDumper):
    """Writes a value that occurs twice twice, instead of an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def encode_yaml(config: Mapping[str, Any]) -> bytes:
    return yaml.dump(dict(config), Dumper=_Dumper, sort_keys=True).encode()


# What hardly any config of ours has: aliases, tags, other line breaks, lists and mappings on one line or deep down.
_MAY_BE_NESTED = re.compile("[&*!\\[{?\r\x85\u2028\u2029]|-[ \t]+-|^ {16}", re.MULTILINE)


def _check_events(text: str) -> None:
    """Look at YAML before it becomes values: aliases may stand for billions, and nesting may overflow the stack."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        if getattr(event, "anchor", None) is not None or getattr(event, "tag", None) is not None:
            raise ValueError("it has aliases or tags")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(_TOO_DEEP)


def values_within(value: Any) -> list[Any]:
    """All that is in nested lists and mappings, keys and themselves included; ValueError if it is nested too deeply."""
    found, level = [value], [value]
    for _ in range(DEEPEST):
        level = [item for each in level if isinstance(each, dict | list) for item in _items(each)]
        found += level
    if any(isinstance(item, dict | list) for item in level):
        raise ValueError(_TOO_DEEP)
    return found


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [*value, *value.values()]
    return value if isinstance(value, list) else []


def _decode(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 ({error.reason} at byte {error.start})") from None


def _integer(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > LARGEST:
        raise ValueError(_TOO_LONG)
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"it has the number {text[:20]}, which is too large")
    return value


def _refuse(word: str) -> None:
    raise ValueError(f"it has {word}, which is not JSON")


_TOO_LONG = "it has an integer of more than 64 bits"
_TOO_DEEP = f"it has more than {DEEPEST} lists and mappings within each other"
_STRICT: dict[str, Any] = {"parse_int": _integer, "parse_float": _float, "parse_constant": _refuse}


def parse_lines(data: bytes) -> list[Any]:
    """The value of each line, None for damaged ones. Its depth is not limited where all lines are sound."""
    lines = data.splitlines()
    parsed: list[Any] = []
    if not _is_suspicious(data) and max(map(len, lines), default=0) <= LONGEST_LINE:
        with suppress(ValueError, RecursionError):  # all at once, which is many times faster
            parsed = json.loads((b"[" + b",".join(lines) + b"]").decode())
    return parsed if len(parsed) == len(lines) else [parse_line(line) for line in lines]


def parse_line(line: bytes) -> Any:
    """The value of strict JSON, or None."""
    try:
        return parse(line)
    except ValueError:
        return None


def _is_suspicious(data: bytes) -> bool:
    """Whether there may be long integers, large exponents, NaN, infinity or escaped characters.

    A search for a few strings takes a tenth of the time of a regular expression.
    """
    zeros = data.translate(_DIGITS_TO_ZERO)
    return any(mark in zeros for mark in _SUSPICIOUS)


_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = [start + b"0" * 19 for start in (b" ", b":", b",", b"[", b"-", b"\t")]
_EXPONENTS = [letter + sign + b"000" for letter in (b"e", b"E") for sign in (b"", b"+")]
_SUSPICIOUS = (*_LONG, *_EXPONENTS, b"NaN", b"Infinity", b"\\u")


def append_line(path: Path, line: bytes) -> None:
    """Add one line to a file and flush it to disk, whole or not at all."""
    descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
    try:
        size = os.fstat(descriptor).st_size
        is_cut_off = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"  # by a kill: do not append to that line
        append_whole(descriptor, b"\n" + line if is_cut_off else line, path)
    finally:
        os.close(descriptor)
