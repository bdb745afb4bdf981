"""One file over HTTP: retried, resumed where it broke off, never waiting for long on a host that is not there."""

import http.client
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from tqdm import tqdm

CHUNK = 1 << 18
# One mirror in use refuses the name that urllib gives itself.
USER_AGENT = "Mozilla/5.0 (compatible; nero-prepare-data)"
# Statuses of the 4xx range that may pass; the others are the server's last word.
PASSING = {408, 425, 429}


class DownloadFailed(OSError):
    """A file could not be fetched; the message says which and why, in one line."""


class _Passing(Exception):
    """A fault worth another try; `connected` says whether the server had answered."""

    def __init__(self, reason: str, connected: bool) -> None:
        super().__init__(reason)
        self.connected = connected


@dataclass(frozen=True)
class Patience:
    """How long to keep trying.

    timeout:   seconds without a byte, and seconds to connect
    attempts:  tries while the server answers at all
    connects:  tries while it cannot even be reached; fewer, so that a machine without a network learns it soon
    pause:     seconds before the second try, doubled before each further one
    """

    timeout: float = 10.0
    attempts: int = 5
    connects: int = 2
    pause: float = 1.0


PATIENCE = Patience()


def download(url: str, target: Path, patience: Patience = PATIENCE) -> None:
    """Fetch url into target, showing progress on stderr; raises DownloadFailed.

    What had arrived before a fault is kept for the next try of this call. The content is not checked here: that is the
    business of whoever knows the checksum.
    """
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise DownloadFailed(f"{url} is neither http nor https")
    target.unlink(missing_ok=True)
    for attempt in range(1, patience.attempts + 1):
        try:
            _fetch_rest(url, target, patience.timeout)
            return
        except _Passing as fault:
            last = attempt >= (patience.attempts if fault.connected else patience.connects)
            if last:
                raise DownloadFailed(f"{target.name}: {fault}") from fault
        time.sleep(patience.pause * 2 ** (attempt - 1))


def _fetch_rest(url: str, target: Path, timeout: float) -> None:
    """One try: append to target what is still missing of it."""
    have = target.stat().st_size if target.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        response = urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the server's file ends before our part does: not the same file, so start again
            target.unlink(missing_ok=True)
            raise _Passing("the server would not resume", connected=True) from error
        if error.code >= 500 or error.code in PASSING:
            raise _Passing(f"HTTP status {error.code}", connected=True) from error
        raise DownloadFailed(f"{target.name}: HTTP status {error.code}") from error
    except (OSError, http.client.HTTPException) as error:
        raise _Passing(_reason(error), connected=False) from error
    with response:
        resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if response.status == 206 and not resumed:
            target.unlink(missing_ok=True)
            raise _Passing("the server resumed at the wrong place", connected=True)
        with target.open("ab" if resumed else "wb") as file:
            _copy(response, file, target.name, have if resumed else 0)


def _copy(response: http.client.HTTPResponse, file: BinaryIO, name: str, have: int) -> None:
    """Copy the body, with a bar on a terminal and one plain line elsewhere."""
    length = response.headers.get("Content-Length", "")
    rest = int(length) if length.isdigit() else None
    total = None if rest is None else have + rest
    if not sys.stderr.isatty():
        print(
            f"  {name}: {f'{total:,}' if total is not None else 'unknown number of'} bytes", file=sys.stderr, flush=True
        )
    copied = 0
    with tqdm(total=total, initial=have, unit="B", unit_scale=True, desc=f"  {name}", leave=False, disable=None) as bar:
        while True:
            try:
                chunk = response.read(CHUNK)
            except (OSError, http.client.HTTPException) as error:
                raise _Passing(_reason(error), connected=True) from error
            if not chunk:
                break
            file.write(chunk)
            copied += len(chunk)
            bar.update(len(chunk))
    # read(n) ends quietly when a connection is cut, so the length has to be compared here.
    if rest is not None and copied < rest:
        raise _Passing(f"the connection ended after {have + copied:,} of {total:,} bytes", connected=True)


def _reason(error: BaseException) -> str:
    """A network error in a few words."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return "the host name cannot be resolved"
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return str(cause) or type(cause).__name__
