"""Attention over packed sentences, with and without kernels, compared with attention sentence by sentence.

Kernels run in Triton's interpreter if there is no GPU.
"""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nero.models import attention
from nero.models.attention import Packing, attend_projected, packing, token_indices
from support.fused_steps import DEVICE

kernels = pytest.importorskip("nero.models.kernels.attention")
HEADS, SIZE = 2, 16
WIDTH = HEADS * SIZE
LONGEST = 64
COUNTS = [3, 0, 17, 40, 16, 1]
OTHERS = [5, 0, 12, 33, 16, 64]
# Tolerances, relative to the largest value, for rounding of the operands of products.
ROUNDING = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


@pytest.fixture(autouse=True)
def _exact() -> Any:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)


def layout(counts: list[int], length: int = LONGEST, empty: int = 40) -> Packing:
    places = token_indices(torch.tensor([counts]), torch.tensor([length]), sum(counts) + empty)[0]
    return packing(places.to(DEVICE), len(counts), length)


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(DEVICE, dtype).requires_grad_()


def inputs(of: Packing, to: Packing | None, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor | None]:
    slots = len(of.indices)
    if to is None:
        return draw(slots, 3 * WIDTH, dtype=dtype), None
    return draw(slots, WIDTH, dtype=dtype), draw(len(to.indices), 2 * WIDTH, seed=1, dtype=dtype)


def call(query: Tensor, memory: Tensor | None, of: Packing, to: Packing | None, **settings: Any) -> Tensor:
    seed = torch.tensor([settings.pop("seed", 7)], device=DEVICE) if settings.get("dropout") else None
    words: dict[str, Any] = {"dropout": 0.0, "causal": False} | settings
    return kernels.packed_attention(query, memory, of.ends, (to or of).ends, seed, HEADS, LONGEST, **words)


def sentence_by_sentence(
    query: Tensor, memory: Tensor | None, of: Packing, to: Packing | None, causal: bool, kept: Tensor | None = None
) -> Tensor:
    """Attention by its definition, in float64; `kept` are factors [rows, heads, queries, keys] of the weights."""
    parts = query.double().chunk(3, 1) if memory is None else (query.double(), *memory.double().chunk(2, 1))
    found = torch.zeros(len(query), WIDTH, dtype=torch.float64, device=query.device)
    first = first_key = 0
    pieces = []
    for row, (last, last_key) in enumerate(zip(of.ends.tolist(), (to or of).ends.tolist(), strict=True)):
        q, k, v = (
            part[start:end].unflatten(1, (HEADS, SIZE)).transpose(0, 1)
            for part, start, end in zip(parts, (first, first_key, first_key), (last, last_key, last_key), strict=True)
        )
        scores = q @ k.transpose(1, 2) * SIZE**-0.5
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        weights = scores.softmax(-1)
        if kept is not None:
            weights = weights * kept[row, :, : last - first, : last_key - first_key]
        pieces.append((weights @ v).transpose(0, 1).flatten(1))
        first, first_key = last, last_key
    words = torch.cat(pieces)
    return torch.cat([words, found[len(words) :]])


def gradients(result: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    factor = draw(*result.shape, seed=2, dtype=torch.float64).detach()
    return [*torch.autograd.grad((result * factor).sum(), [x for x in inputs if x is not None])]


KINDS = pytest.mark.parametrize(
    ("to", "causal"), [(None, False), (None, True), (OTHERS, False)], ids=["itself", "back", "memory"]
)


def assert_close_to_reference(found: list[Tensor], wanted: list[Tensor], dtype: torch.dtype = torch.float32) -> None:
    for mine, other in zip(found, wanted, strict=True):
        scale = float(other.detach().abs().max())
        torch.testing.assert_close(mine.double(), other.double(), rtol=0, atol=ROUNDING[dtype] * scale)


@KINDS
def test_unfused_packed_attention_matches_per_sentence_attention(to: list[int] | None, causal: bool) -> None:
    of, other = layout(COUNTS), to and layout(to)
    query, memory = (x if x is None else x.detach().double().requires_grad_() for x in inputs(of, other))
    assert query is not None
    found = attend_projected(query, memory, of, other or of, HEADS, 0.0, causal)
    wanted = sentence_by_sentence(query, memory, of, other, causal)
    torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(gradients(found, query, memory), gradients(wanted, query, memory))


@KINDS
@pytest.mark.parametrize("dtype", ROUNDING)
def test_kernel_attention_matches_per_sentence_attention(
    to: list[int] | None, causal: bool, dtype: torch.dtype
) -> None:
    of, other = layout(COUNTS), to and layout(to)
    query, memory = inputs(of, other, dtype)
    found = call(query, memory, of, other, causal=causal)
    assert found.dtype == dtype
    wanted = sentence_by_sentence(query, memory, of, other, causal)
    assert_close_to_reference(
        [found, *gradients(found, query, memory)], [wanted, *gradients(wanted, query, memory)], dtype
    )


@pytest.mark.slow
@settings(max_examples=8)
@given(
    pairs=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=4),
    empty=st.integers(0, 35),
    causal=st.booleans(),
)
def test_kernel_attention_matches_reference_for_any_lengths(
    pairs: list[tuple[int, int]], empty: int, causal: bool
) -> None:
    counts, others = map(list, zip(*pairs, strict=True))
    of, other = layout(counts, empty=empty), None if causal else layout(others, empty=empty)
    query, memory = inputs(of, other)
    found = call(query, memory, of, other, causal=causal)
    wanted = sentence_by_sentence(query, memory, of, other, causal)
    assert_close_to_reference([found, *gradients(found, query, memory)], [wanted, *gradients(wanted, query, memory)])


def kept_by_dropout(of: Packing, to: Packing | None, **settings: Any) -> Tensor:
    """Dropout factors of the weights [rows, heads, LONGEST, LONGEST], found with one-hot values for the keys."""
    keys = (to or of).ends.tolist()
    factors = torch.zeros(len(of.ends), HEADS, LONGEST, LONGEST, dtype=torch.float64, device=DEVICE)
    for start in range(0, LONGEST, SIZE):  # as many keys at once as a head has entries
        query = torch.zeros(len(of.indices), WIDTH, device=DEVICE)
        memory = torch.zeros(len((to or of).indices), 2 * WIDTH, device=DEVICE)
        first = 0
        for end in keys:
            for key in range(start, min(start + SIZE, end - first)):
                memory[first + key, WIDTH + key - start :: SIZE] = 1.0
            first = end
        found = kernels.packed_attention(
            query, memory, of.ends, (to or of).ends, torch.tensor([settings["seed"]], device=DEVICE), HEADS,
            LONGEST, settings["dropout"], False,
        ).double()  # fmt: skip
        first = first_key = 0
        for row, (end, last_key) in enumerate(zip(of.ends.tolist(), keys, strict=True)):
            even = found[first:end].unflatten(1, (HEADS, SIZE)) * (last_key - first_key)  # all weights are equal
            factors[row, :, : end - first, start : start + SIZE] = even.transpose(0, 1)
            first, first_key = end, last_key
    return factors


@pytest.mark.slow
@KINDS
def test_backward_uses_same_dropout_mask(to: list[int] | None, causal: bool) -> None:
    of, other = layout(COUNTS), to and layout(to)
    settings = {"dropout": 0.3, "seed": 2**40 + 5}
    kept = kept_by_dropout(of, other, **settings)
    values = kept[3, :, :40, :33].flatten()  # each weight is either dropped or scaled up
    assert torch.isclose(values, torch.tensor(1 / 0.7, dtype=torch.float64, device=DEVICE), rtol=1e-5).logical_or(
        values == 0
    ).all()  # fmt: skip
    query, memory = inputs(of, other)
    found = call(query, memory, of, other, causal=causal, **settings)
    wanted = sentence_by_sentence(query, memory, of, other, causal, kept)
    assert_close_to_reference([found, *gradients(found, query, memory)], [wanted, *gradients(wanted, query, memory)])


def test_dropout_has_given_rate_and_differs_across_rows_heads_and_seeds() -> None:
    of = layout([40, 40])
    kept = [kept_by_dropout(of, of, dropout=0.25, seed=seed)[:, :, :40, :40] > 0 for seed in (1, 2)]
    for one in kept:
        assert abs(float(one.double().mean()) - 0.75) < 0.02
    masks = [one[row, head] for one in kept for row in range(2) for head in range(HEADS)]
    for number, mask in enumerate(masks):
        for other in masks[:number]:
            assert abs(float((mask == other).double().mean()) - (0.75**2 + 0.25**2)) < 0.05


def test_empty_slots_have_zero_output_and_gradient() -> None:
    of = layout([3, 2], empty=70)
    query, _ = inputs(of, None)
    with torch.no_grad():
        query[5:] = torch.nan
    found = call(query, None, of, None)
    assert found[:5].isfinite().all()
    assert not found[5:].any()
    (gradient,) = torch.autograd.grad(found.sum(), query)
    assert gradient[:5].isfinite().all()
    assert not gradient[5:].any()


@pytest.mark.parametrize("with_memory", [False, True])
def test_operator_passes_opcheck(with_memory: bool) -> None:
    of, to = layout([3, 20]), layout([4, 1])
    query, memory = inputs(of, to if with_memory else None)
    ends = (to if with_memory else of).ends
    seed = torch.tensor([3], device=DEVICE)
    tests = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    if not with_memory:  # opcheck must not get the same tensor twice
        ends = ends.clone()
    torch.library.opcheck(
        kernels.packed_attention, (query, memory, of.ends, ends, seed, HEADS, LONGEST, 0.1, False), test_utils=tests
    )


def test_non_contiguous_query_raises() -> None:
    of = layout([3])
    with pytest.raises(ValueError, match="must be contiguous"):
        call(torch.ones(3 * WIDTH, 43, device=DEVICE).t(), None, of, None)


def test_sentences_longer_than_a_tile_raise() -> None:
    of = layout([3])
    query, _ = inputs(of, None)
    with pytest.raises(ValueError, match="up to 65 tokens"):
        kernels.packed_attention(query, None, of.ends, of.ends, None, HEADS, LONGEST + 1, 0.0, False)


@pytest.mark.parametrize(
    ("dtype", "size", "longest", "taken"),
    [
        (torch.bfloat16, 64, 64, True),
        (torch.float32, 16, 32, True),
        (torch.float64, 64, 16, False),
        (torch.float32, 24, 16, False),
        (torch.float32, 8, 16, False),
        (torch.float32, 64, 33, False),
        (torch.float16, 64, 65, False),
    ],
)
def test_kernels_support_given_dtype_head_size_and_length(
    dtype: torch.dtype, size: int, longest: int, taken: bool
) -> None:
    assert attention._kernels_take(dtype, size, longest) == taken


def test_only_gpus_have_kernels() -> None:
    assert not attention._has_kernels("cpu")
    assert attention._has_kernels("cuda") == kernels.COMPILED


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_kernels_are_used_where_available(monkeypatch: pytest.MonkeyPatch, dropout: float) -> None:
    monkeypatch.setattr(attention, "_has_kernels", lambda device: True)
    asked = []
    plain = kernels.launch
    monkeypatch.setattr(kernels, "launch", lambda *args: asked.append(args[-2]) or plain(*args))
    of, to = layout([3, 20], length=32), layout([4, 1], length=32)
    query, memory = inputs(of, to)
    first, second = (attend_projected(query, memory, of, to, HEADS, dropout) for _ in range(2))
    assert asked == [dropout, dropout]
    assert torch.equal(first, second) == (dropout == 0)
    attend_projected(query, memory, of, to, HEADS, dropout, fused=False)
    assert len(asked) == 2


@pytest.mark.slow
def test_compiled_layer_matches_eager_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_has_kernels", lambda device: True)
    weight = draw(3 * WIDTH, WIDTH, seed=5)

    def layer(x: Tensor, of: Packing) -> Tensor:
        return F.relu(attend_projected(F.linear(x, weight), None, of, of, HEADS, 0.0, True))

    compiled = torch.compile(layer, dynamic=True, fullgraph=True)
    for counts in ([3, 20], [4, 1, 31]):
        of = layout(counts, length=32)
        x = draw(len(of.indices), WIDTH)
        found, wanted = compiled(x, of), layer(x, of)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(gradients(found, x, weight), gradients(wanted, x, weight))
