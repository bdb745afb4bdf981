import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from nero.models.mlp import MLP
from nero.models.resnet import ResNet18
from nero.models.vgg import VGG11
from nero.optim import Nero, project, project_
from nero.theory.balance import balance, balance_of_tensor, centred, is_balanced
from support import references

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


def five(values):
    shares = {"min": 0, "low": 0.05, "median": 0.5, "high": 0.95, "max": 1}
    return {name: float(np.quantile(values, share)) for name, share in shares.items()}


def assert_same(measured, expected):
    assert measured.keys() == expected.keys()
    for name, value in expected.items():
        assert measured[name] == pytest.approx(value, rel=1e-9, abs=1e-12), name


def assert_reads(layer, weight):
    """Check the layer's statistics against plain float64 loops over the array."""
    rows = list(references.rows_of(weight))
    sums = [math.fsum(row) for row in rows]
    norms = [references.norm_of(row) for row in rows]
    leans = [abs(s) / (math.sqrt(len(row)) * n) for s, n, row in zip(sums, norms, rows, strict=True)]
    assert (layer.neurons, layer.fan_in) == (len(rows), len(rows[0]))
    assert_same(layer.sum, five(sums))
    assert_same(layer.norm, five(norms))
    assert_same(layer.lean, five(leans))


def small_network(dtype=torch.float32):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.Flatten(),
        nn.Linear(8 * 4, 6),
        nn.Linear(6, 5),
    )
    return network.to(dtype)


def train(network, optimizer, steps=5):
    dtype = next(network.parameters()).dtype
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.randn(16, 3, 4, 4, generator=generator).to(dtype)
        network(x).square().mean().backward()
        optimizer.step()


# ---------------------------------------------------------------------------------------------------- statistics


@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (5, 7), (4, 1), (3, 784), (2, 3, 4), (1, 2)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_sums_norms_and_leans_match_float64_reference(shape, dtype):
    weight = references.draw(0, [shape], torch.float64)[0].to(dtype)
    layer = balance_of_tensor("w", weight)
    assert layer.name == "w"
    assert_reads(layer, weight.double().numpy())
    assert not layer.balanced


def test_record_contains_all_statistics():
    weight = references.draw(0, [(5, 7)], torch.float64)[0]
    layer = balance_of_tensor("head.weight", weight)
    assert asdict(layer) == {
        "name": "head.weight",
        "neurons": 5,
        "fan_in": 7,
        "balanced": False,
        "sum": layer.sum,
        "norm": layer.norm,
        "lean": layer.lean,
    }


def test_balance_does_not_depend_on_memory_format():
    weight = references.draw(0, [(8, 5, 3, 3)], torch.float64)[0]
    last = weight.contiguous(memory_format=torch.channels_last)
    assert last.stride() != weight.stride()
    one, other = balance_of_tensor("w", weight), balance_of_tensor("w", last)
    for name in ("sum", "norm", "lean"):
        assert_same(getattr(one, name), getattr(other, name))
    assert balance_of_tensor("w", project_(last)).balanced


def test_lean_is_cosine_with_ones_vector():
    rows = torch.tensor([[1.0, -1.0, 0.0, 0.0], [5.0, 5.0, 5.0, 5.0], [-3.0, -3.0, -3.0, -3.0], [2.0, 0.0, 0.0, 0.0]])
    for row, lean in zip(rows, [0, 1, 1, 0.5], strict=True):
        assert balance_of_tensor("w", row.view(1, -1)).lean == dict.fromkeys(five([0]), lean)


@settings(max_examples=100)
@given(
    fan_in=st.integers(1, 3000),
    size=st.floats(-200, 200),
    offset=st.sampled_from([0.0, 1.0, 1e9]),
    seed=st.integers(0, 2**32),
)
def test_lean_is_at_most_one_and_scale_invariant(fan_in, size, offset, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(3, fan_in, generator=generator, dtype=torch.float64) + offset
    leans, scaled = (balance_of_tensor("w", w).lean for w in (rows, rows * 10.0**size))
    assert 0 <= leans["min"] <= leans["max"] <= 1
    assert_same(scaled, leans)


def test_non_finite_weights_are_not_balanced():
    for wrong in (math.nan, math.inf):
        weight = project(references.draw(0, [(5, 7)], torch.float64)[0])
        assert balance_of_tensor("w", weight).balanced
        weight[2, 3] = wrong
        assert not balance_of_tensor("w", weight).balanced
        assert not centred(weight)


# --------------------------------------------------------------------------------------------------- Definition 1


@settings(max_examples=150)
@given(
    dtype=st.sampled_from(DTYPES),
    fan_in=st.integers(2, 3000),
    kind=st.sampled_from(["normal", "positive", "heavy", "offset"]),
    size=st.floats(-6, 3),
    seed=st.integers(0, 2**32),
)
def test_projected_neurons_are_balanced(dtype, fan_in, kind, size, seed):
    rows = torch.randn(4, fan_in, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    rows = {"normal": rows, "positive": rows.abs(), "heavy": rows**7, "offset": rows + 1}[kind]
    rows = (rows * 10**size / rows.abs().amax()).to(dtype)
    # Exclude nearly constant neurons: projection keeps the mean of those that are constant in their dtype.
    spread = (rows.double() - rows.double().mean(-1, keepdim=True)).norm(dim=-1)
    rows = rows[spread > 0.1 * rows.double().norm(dim=-1)]
    assume(len(rows))
    projected = project(rows)
    assert balance_of_tensor("w", projected).balanced
    assert centred(projected)
    # Either constraint alone is not enough.
    assert not balance_of_tensor("w", projected * 1.25).balanced
    assert centred(projected * 1.25)
    assert not balance_of_tensor("w", projected + 0.25).balanced
    assert not centred(projected + 0.25)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_deviation_beyond_rounding_is_detected(dtype):
    weight = project(references.draw(0, [(20, 300)], torch.float64)[0]).to(dtype)
    assert balance_of_tensor("w", weight).balanced
    off = 300 * torch.finfo(dtype).eps
    longer, leaning = weight.clone(), weight.clone()
    longer[3] *= 1 + off
    leaning[3] += off / math.sqrt(300)
    assert not balance_of_tensor("w", longer).balanced
    assert not balance_of_tensor("w", leaning).balanced
    assert balance_of_tensor("w", longer, tolerance=2 * off).balanced
    assert balance_of_tensor("w", leaning, tolerance=2 * off).balanced
    assert not balance_of_tensor("w", leaning, tolerance=off / 2).balanced


def test_weights_cast_from_bfloat16_need_wider_tolerance():
    stored = project(references.draw(0, [(20, 300)], torch.float64)[0]).bfloat16()
    assert balance_of_tensor("w", stored).balanced
    assert not balance_of_tensor("w", stored.float()).balanced
    assert balance_of_tensor("w", stored.float(), tolerance=0.01).balanced


@pytest.mark.parametrize(
    "neuron", [[[2.0, 2.0]], [[0.1, 0.1, 0.1]], [[0.0, 0.0, 0.0]]], ids=["two", "constant", "zeros"]
)
def test_degenerate_neurons_are_not_balanced(neuron):
    weight = nn.Parameter(torch.tensor(neuron))
    Nero([weight])
    layer = balance_of_tensor("w", weight)
    assert not layer.balanced
    if weight.any():
        assert layer.norm["median"] == pytest.approx(1, abs=1e-6)
        assert layer.lean["median"] == pytest.approx(1, abs=1e-6)
        assert not centred(weight)
    else:
        assert layer.norm["max"] == layer.lean["max"] == 0
        assert centred(weight)


def test_single_unbalanced_neuron_makes_layer_unbalanced():
    weight = project(references.draw(0, [(50, 20)], torch.float64)[0])
    weight[17] = 2 * weight[17]
    assert not balance_of_tensor("w", weight).balanced
    assert centred(weight)
    weight[17, 0] += 1
    assert not centred(weight)


# --------------------------------------------------------------------------------------------------- Definition 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(20, 10),
        lambda: nn.Conv2d(3, 8, 3),
        lambda: nn.Embedding(11, 6),
        lambda: nn.LSTM(4, 5),
        lambda: nn.MultiheadAttention(8, 2),
        lambda: MLP(3, 12, 4),
        lambda: VGG11(width=2, hidden=6),
        lambda: ResNet18(width=2),
    ],
    ids=["linear", "convolution", "embedding", "LSTM", "attention", "MLP", "VGG-11", "ResNet-18"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_network_is_balanced_once_nero_is_constructed(make, dtype):
    torch.manual_seed(0)
    network = make().to(dtype)
    assert not is_balanced(network)
    Nero(network.parameters())
    assert is_balanced(network)
    assert all(layer.balanced for layer in balance(network))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_nero_keeps_a_network_balanced(dtype, memory_format):
    network = small_network(dtype).to(memory_format=memory_format)
    before = [layer.name for layer in balance(network)]
    train(network, Nero(network.parameters(), lr=0.1))
    assert is_balanced(network)
    assert before == ["0.weight", "3.weight", "4.weight"]
    for layer, weight in zip(balance(network), (network[0].weight, network[3].weight, network[4].weight), strict=True):
        assert_reads(layer, weight.detach().double().numpy())


def test_sgd_drifts_from_balance():
    network = small_network()
    Nero(network.parameters())
    assert is_balanced(network)
    train(network, torch.optim.SGD(network.parameters(), lr=0.1))
    assert not is_balanced(network)


def test_network_is_not_balanced_with_one_constraint_only():
    for halves in ({"mean": False}, {"norm": False}):
        network = small_network()
        train(network, Nero(network.parameters(), **halves))
        assert not is_balanced(network)
        assert all(centred(p) for p in network.parameters() if p.ndim >= 2) == halves.get("mean", True)


def test_tied_parameters_are_counted_once():
    network = nn.ModuleDict({"embedding": nn.Embedding(9, 4), "head": nn.Linear(4, 9), "gain": nn.LayerNorm(4)})
    network["head"].weight = network["embedding"].weight
    assert [(layer.name, layer.neurons, layer.fan_in) for layer in balance(network)] == [("embedding.weight", 9, 4)]
    Nero(network.parameters())
    assert is_balanced(network)


def test_zero_padding_row_makes_embedding_unbalanced():
    network = nn.Embedding(9, 4, padding_idx=0)
    Nero(network.parameters())
    assert not is_balanced(network)


def test_is_balanced_raises_for_network_without_neurons():
    for network in (nn.BatchNorm2d(3), nn.ReLU(), nn.Sequential()):
        assert balance(network) == []
        with pytest.raises(ValueError, match=r"^\w+ has no neurons: [^\n]+$"):
            is_balanced(network)


@pytest.mark.parametrize("shape", [(), (5,), (0, 5)])
def test_tensor_without_neurons_gives_one_line_error(shape):
    for refused in (lambda w: balance_of_tensor("bias", w), centred):
        with pytest.raises(ValueError, match=r"^[^\n]+ has no neurons[^\n]+$"):
            refused(torch.zeros(shape))
