"""Tests of tokenising Multi30k and of its cache file, which is used if it is valid and rebuilt otherwise."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nero.data.download.files import CheckedFile
from nero.data.sources import DATASETS, Dataset, MissingData
from nero.data.text import parallel_text as tokenised
from nero.data.text.parallel_text import LANGUAGES, PAIRS, Parts, raw_lines, tokenised_multi30k
from support.real_data import root_with

# Includes a contraction, an abbreviation, two spaces, a no-break space and characters that str.splitlines splits at.
RAW = {
    "train": {
        "de": ["Ein Mann  läuft.", "Zwei Frauen, z.B. Köche,\u2028sitzen.", "Ein Hund geht's\xa0an."],
        "en": ["A man's running.", "Two women don't\x85sit.", "A dog  (brown) goes."],
    },
    "val": {"de": ["Kinder!"], "en": ["Children! "]},
    "test_2016_flickr": {"de": ["Ein T-Shirt.", "Die Straße."], "en": ["A T-shirt.", "The U.S. street."]},
}
Raw = dict[str, dict[str, list[str]]]


def install(monkeypatch: pytest.MonkeyPatch, root: Path, raw: Raw) -> Path:
    """Register `raw` as the text of Multi30k, write its files, and return the path of the token cache."""
    contents = {
        f"multi30k/{part}.{language}": "".join(f"{line}\n" for line in raw[part][language]).encode()
        for part in PAIRS
        for language in LANGUAGES
    }
    files = tuple(CheckedFile.of(path, content) for path, content in contents.items())
    monkeypatch.setitem(DATASETS, "multi30k", Dataset(files, origins=()))
    for part in PAIRS:
        monkeypatch.setitem(PAIRS, part, len(raw[part]["de"]))
    for file in files:
        file.put(root, contents[file.path])
    return root / "multi30k" / "tokens.json"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    pytest.importorskip("spacy")
    return install(monkeypatch, tmp_path, RAW)


def without_spacy(monkeypatch: pytest.MonkeyPatch, root: Path) -> Parts:
    """The tokens when spaCy cannot be imported."""
    with monkeypatch.context() as bare:
        bare.setitem(sys.modules, "spacy", None)
        return tokenised_multi30k(root)


def test_tokens_are_lower_case_spacy_tokens(kept: Path, tmp_path: Path) -> None:
    words = tokenised_multi30k(tmp_path)
    assert set(words) == {"train", "val", "test_2016_flickr"}
    assert words["train"]["de"][0] == ["ein", "mann", " ", "läuft", "."]
    assert words["train"]["de"][1][:6] == ["zwei", "frauen", ",", "z.b.", "köche", ","]
    assert words["train"]["en"][0] == ["a", "man", "'s", "running", "."]
    assert words["train"]["en"][2] == ["a", "dog", " ", "(", "brown", ")", "goes", "."]
    assert words["val"] == {"de": [["kinder", "!"]], "en": [["children", "!"]]}
    assert words["test_2016_flickr"]["en"][1] == ["the", "u.s.", "street", "."]


def test_tokens_match_torchtext_field(kept: Path, tmp_path: Path) -> None:
    data = pytest.importorskip("torchtext.data")
    import spacy

    words = tokenised_multi30k(tmp_path)
    for language in LANGUAGES:
        nlp = spacy.blank(language)
        field = data.Field(tokenize=lambda line, nlp=nlp: [token.text for token in nlp.tokenizer(line)], lower=True)
        for part in PAIRS:
            assert words[part][language] == [field.preprocess(f"{line}\n") for line in RAW[part][language]]


def test_raw_lines_split_only_on_newline(kept: Path, tmp_path: Path) -> None:
    assert raw_lines(tmp_path, "train", "de") == RAW["train"]["de"]
    assert raw_lines(tmp_path, "val", "en") == ["Children! "]
    (kept.parent / "val.en").write_bytes(b"")
    assert raw_lines(tmp_path, "val", "en") == []
    (kept.parent / "val.en").write_bytes(b"a\r\n\nb")
    assert raw_lines(tmp_path, "val", "en") == ["a\r", "", "b"]


def test_cached_tokens_are_used_without_spacy(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenised_multi30k(tmp_path)
    written = kept.read_bytes()
    assert without_spacy(monkeypatch, tmp_path) == made
    assert kept.read_bytes() == written
    assert {path.name for path in kept.parent.iterdir()} == {
        "tokens.json",
        *(f"{part}.{language}" for part in PAIRS for language in LANGUAGES),
    }


def test_cache_file_is_json_with_provenance(kept: Path, tmp_path: Path) -> None:
    import spacy

    made = tokenised_multi30k(tmp_path)
    content = json.loads(kept.read_text(encoding="utf-8"))
    assert content["parts"] == made
    assert content["format"] == 1
    assert content["spacy"] == spacy.__version__
    assert content["sha256"] == hashlib.sha256(kept.read_bytes().partition(b"\n")[2]).hexdigest()


def test_cache_stays_valid_for_other_spacy_version(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import spacy

    with monkeypatch.context() as other:
        other.setattr(spacy, "__version__", "2.3.9")
        made = tokenised_multi30k(tmp_path)
    assert json.loads(kept.read_bytes())["spacy"] == "2.3.9"
    written = kept.read_bytes()
    assert tokenised_multi30k(tmp_path) == made
    assert kept.read_bytes() == written


def test_changed_raw_text_invalidates_cache(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenised_multi30k(tmp_path)
    raw = kept.parent / "val.en"
    raw.write_bytes(raw.read_bytes().replace(b"!", b"?"))
    with pytest.raises(MissingData):
        without_spacy(monkeypatch, tmp_path)
    assert tokenised_multi30k(tmp_path)["val"]["en"] == [["children", "?"]]
    assert without_spacy(monkeypatch, tmp_path)["val"]["en"] == [["children", "?"]]


def test_text_moved_between_files_invalidates_cache(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw: Raw = {"train": {"de": ["a", "b"], "en": ["c", "d"]}, "val": {"de": [], "en": []}}
    install(monkeypatch, tmp_path, {**raw, "test_2016_flickr": {"de": ["e"], "en": ["f"]}})
    tokenised_multi30k(tmp_path)
    moved: Raw = {"train": {"de": ["a"], "en": ["b"]}, "val": {"de": ["c"], "en": ["d"]}}
    install(monkeypatch, tmp_path, {**moved, "test_2016_flickr": {"de": ["e"], "en": ["f"]}})
    assert tokenised_multi30k(tmp_path)["val"] == {"de": [["c"]], "en": [["d"]]}


@pytest.mark.parametrize(
    ("name", "value"), [("FORMAT", 2), ("TOKENISER", {"de": "another", "en": "another", "then": "lower case"})]
)
def test_changed_format_or_tokeniser_invalidates_cache(
    name: str, value: object, kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(tokenised, name, value)
        tokenised_multi30k(tmp_path)
    old = kept.read_bytes()
    tokenised_multi30k(tmp_path)
    assert kept.read_bytes() != old


def test_corrupted_cache_is_detected_and_rebuilt(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tokenised_multi30k(tmp_path)
    whole = kept.read_bytes()
    # Every byte of the header, and a sample of the rest.
    for place in [*range(250), *range(250, len(whole), 97), len(whole) - 1]:
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(MissingData):
            without_spacy(monkeypatch, tmp_path)
    assert tokenised_multi30k(tmp_path) == made
    assert kept.read_bytes() == whole


@pytest.mark.parametrize("content", [b"", b"{}", b"null\n", b"\n\n", b"\xff\xfe"])
def test_invalid_cache_file_is_replaced(content: bytes, kept: Path, tmp_path: Path) -> None:
    kept.write_bytes(content)
    made = tokenised_multi30k(tmp_path)
    assert json.loads(kept.read_bytes())["parts"] == made


def test_truncated_cache_file_is_replaced(kept: Path, tmp_path: Path) -> None:
    made = tokenised_multi30k(tmp_path)
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    assert tokenised_multi30k(tmp_path) == made
    assert kept.read_bytes() == whole


def test_unwritable_cache_path_only_warns(kept: Path, tmp_path: Path) -> None:
    (kept / "occupied").mkdir(parents=True)
    with pytest.warns(UserWarning, match="could not be cached for the next run"):
        words = tokenised_multi30k(tmp_path)
    assert words["val"]["de"] == [["kinder", "!"]]
    assert not list(kept.parent.glob("*.part"))


def test_read_only_cache_folder_only_warns(kept: Path, tmp_path: Path) -> None:
    kept.parent.chmod(0o555)
    try:
        if os.access(kept.parent, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.warns(UserWarning, match="could not be cached for the next run"):
            words = tokenised_multi30k(tmp_path)
    finally:
        kept.parent.chmod(0o755)
    assert words["val"]["de"] == [["kinder", "!"]]


@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be replaced there")
def test_open_reader_of_old_cache_file_is_undisturbed(kept: Path, tmp_path: Path) -> None:
    tokenised_multi30k(tmp_path)
    old = kept.read_bytes()
    raw = kept.parent / "val.en"
    raw.write_bytes(raw.read_bytes().replace(b"!", b"?"))
    with kept.open("rb") as reader:
        tokenised_multi30k(tmp_path)
        assert reader.read() == old
    assert kept.read_bytes() != old


def test_failed_cache_write_keeps_old_file(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenised_multi30k(tmp_path)
    old = kept.read_bytes()
    raw = kept.parent / "val.en"
    raw.write_bytes(raw.read_bytes().replace(b"!", b"?"))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(UserWarning, match="No space left on device"):
        assert tokenised_multi30k(tmp_path)["val"]["en"] == [["children", "?"]]
    assert kept.read_bytes() == old
    assert not list(kept.parent.glob("*.part"))


def test_error_without_spacy_and_cache_names_remedies_on_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = install(monkeypatch, tmp_path, RAW)
    with pytest.raises(MissingData) as caught:
        without_spacy(monkeypatch, tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert str(kept) in message
    assert "pip install -e '.[suite]'" in message
    assert "copy that file" in message


def test_missing_raw_text_error_names_download_command(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"nero data multi30k --root"):
        tokenised_multi30k(tmp_path)


def test_different_line_counts_per_language_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = install(monkeypatch, tmp_path, {**RAW, "val": {"de": ["eins", "zwei"], "en": ["one"]}})
    with pytest.raises(ValueError, match=r"val has not 2 lines in each language but \{'de': 2, 'en': 1\}"):
        tokenised_multi30k(tmp_path)
    assert not kept.exists()


def test_too_few_pairs_raise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path, RAW)
    monkeypatch.setitem(PAIRS, "train", 29_000)
    with pytest.raises(ValueError, match="train has not 29,000 lines in each language"):
        tokenised_multi30k(tmp_path)


def test_importing_module_does_not_import_spacy() -> None:
    code = "import sys, nero.data.text.parallel_text; print('spacy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def real_root() -> Path:
    return root_with("multi30k")


@pytest.mark.data
def test_real_multi30k_tokens_match_torchtext() -> None:
    data = pytest.importorskip("torchtext.data")
    spacy = pytest.importorskip("spacy")
    translation = pytest.importorskip("torchtext.datasets.translation")
    root = real_root()
    words = tokenised_multi30k(root)
    for part, pairs in (("train", 29_000), ("val", 1_014), ("test_2016_flickr", 1_000)):
        assert len(words[part]["de"]) == len(words[part]["en"]) == pairs

    def field(language: str) -> Any:
        nlp = spacy.blank(language)
        return data.Field(tokenize=lambda line: [token.text for token in nlp.tokenizer(line)], lower=True)

    # torchtext strips each line and drops pairs with an empty side.
    fields = (field("de"), field("en"))
    for part in ("val", "test_2016_flickr"):
        expected = translation.TranslationDataset(str(root / "multi30k" / part), (".de", ".en"), fields)
        assert words[part]["de"] == [example.src for example in expected]
        assert words[part]["en"] == [example.trg for example in expected]
    lines = {language: raw_lines(root, "train", language) for language in LANGUAGES}
    assert all(line.strip() for language in LANGUAGES for line in lines[language])
    edges = [
        n for n in range(29_000) if any(lines[language][n] != lines[language][n].strip() for language in LANGUAGES)
    ]
    assert len(edges) == 40
    for number in [*edges, *range(2_000)]:
        for language, one in zip(LANGUAGES, fields, strict=True):
            assert words["train"][language][number] == one.preprocess(lines[language][number].strip())
