import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nero.optim import neuron_mean, neuron_norm, project, project_, project_all_
from support import references

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
HALVES = [(True, True), (True, False), (False, True), (False, False)]


def rounding(dtype: torch.dtype) -> float:
    """Tolerance of a constraint: one rounding of the dtype plus the error of long sums in float32 or wider."""
    return torch.finfo(dtype).eps + 32 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps


def drawn_rows(data: st.DataObject, dtype: torch.dtype, fan_in: int) -> torch.Tensor:
    """Rows of many kinds: centred or not, sparse, heavy-tailed, and so large or small that squares may overflow."""
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32), label="seed"))
    rows = torch.randn(4, fan_in, generator=generator, dtype=torch.float64)
    kind = data.draw(st.sampled_from(["normal", "positive", "heavy", "sparse", "almost constant"]), label="kind")
    if kind == "positive":
        rows = rows.abs()
    elif kind == "heavy":
        rows = rows**7
    elif kind == "sparse":
        rows = rows * (torch.rand(4, fan_in, generator=generator) < 2 / fan_in)
    elif kind == "almost constant":
        # The spread is between well above and well below the rounding of the dtype.
        rows = 1 + rows * torch.finfo(dtype).eps * 2.0 ** data.draw(st.floats(-3, 8), label="spread")
    rows = rows + data.draw(st.sampled_from([0.0, 0.1, 10.0, 1e4]), label="offset")
    limits = (-7, 4) if dtype == torch.float16 else (-30, 30)  # float16 reaches from 6e-8 to 7e4
    size = 10 ** data.draw(st.floats(*limits), label="size") / rows.abs().amax().clamp(min=1e-9)
    return (rows * size).to(dtype)


@settings(max_examples=250)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), fan_in=st.integers(2, 5000), halves=st.sampled_from(HALVES))
def test_projection_is_idempotent(data, dtype, fan_in, halves):
    rows = drawn_rows(data, dtype, fan_in)
    once = project(rows, *halves)
    assert once.dtype == dtype
    assert torch.equal(project(once, *halves), once)


@settings(max_examples=150)
@given(data=st.data(), dtype=st.sampled_from(DTYPES), fan_in=st.integers(2, 2000))
def test_projected_rows_are_balanced(data, dtype, fan_in):
    rows = drawn_rows(data, dtype, fan_in)
    tolerance = rounding(dtype)
    for before, after in zip(rows.double().numpy(), project(rows).double().numpy(), strict=True):
        if not before.any():
            continue
        assert abs(references.norm_of(after) - 1) <= tolerance
        residual = before - math.fsum(before) / fan_in
        if references.norm_of(residual) > 2 * tolerance * references.norm_of(before):
            assert abs(math.fsum(after)) / math.sqrt(fan_in) <= tolerance


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("shape", [(8, 3, 3, 3), (5, 7), (3, 784), (2, 3, 4)])
def test_projection_matches_reference(shape, halves):
    (weight,) = references.draw(0, [shape], torch.float64)
    expected = weight.numpy().copy()
    references.project(expected, *halves)
    np.testing.assert_allclose(project_(weight.clone(), *halves).numpy(), expected, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(project_(weight.float(), *halves).numpy(), expected, rtol=1e-5, atol=1e-6)
    if len(shape) == 4:
        weight = weight.contiguous(memory_format=torch.channels_last)
        assert project_(weight, *halves).is_contiguous(memory_format=torch.channels_last)
        np.testing.assert_allclose(weight.numpy(), expected, rtol=1e-12, atol=1e-13)


def test_large_mean_does_not_reduce_accuracy():
    rows = (1000 + references.draw(0, [(3, 500)], torch.float64)[0] / 100).float()
    expected = rows.double().numpy()
    references.project(expected)
    # An error of one eps in the mean would be 1e-4 in the small residual.
    np.testing.assert_allclose(project(rows).numpy(), expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-20, 1e20, 1e30, 2e38])
def test_projection_of_rows_whose_squares_overflow_or_underflow(size):
    rows = torch.tensor([[1.0, -0.5, 0.25, 0.0], [0.5, 0.25, 0.75, -1.0]]) * size
    expected = rows.double().numpy()
    references.project(expected)
    np.testing.assert_allclose(project(rows).numpy(), expected, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(neuron_norm(rows), rows.double().norm(dim=-1), rtol=1e-6)
    centred = project(rows, norm=False).double()
    assert (centred.mean(-1).abs() <= 1e-6 * size).all()


@pytest.mark.parametrize("halves", HALVES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_constant_rows_do_not_vanish(dtype, halves):
    mean, norm = halves
    constant = torch.full((1, 37), 0.1, dtype=dtype)
    nearly = constant * (1 + torch.finfo(dtype).eps)
    nearly[0, ::2] = 0.1
    for rows in (constant, -constant, nearly, torch.tensor([[3.0]], dtype=dtype), torch.tensor([[-0.2]], dtype=dtype)):
        projected = project(rows, mean, norm)
        assert projected.isfinite().all()
        if norm:
            assert (neuron_norm(projected) - 1).abs().item() <= rounding(dtype)
            assert (projected.sign() == rows.sign()).all()
        else:
            assert torch.equal(projected, rows)
        assert torch.equal(project(projected, mean, norm), projected)


def test_zero_rows_stay_zero_and_do_not_affect_others():
    rows = torch.zeros(3, 5)
    rows[1] = torch.arange(5.0)
    projected = project(rows)
    assert (projected[[0, 2]] == 0).all()
    assert torch.equal(projected[1], project(rows[1:2])[0])


def test_non_finite_rows_give_nan_without_affecting_others():
    rows = torch.tensor([[1.0, math.nan, 2.0], [1.0, 2.0, 4.0], [math.inf, 0.0, 1.0]])
    projected = project(rows)
    assert projected[0].isnan().any()
    assert projected[2].isnan().any()
    assert projected[1].isfinite().all()


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (3, 0, 2), (0,), (0, 3, 3, 3)])
def test_empty_tensors(shape):
    weight = torch.zeros(shape)
    assert project_(weight).shape == shape
    if weight.ndim >= 2:
        assert neuron_norm(weight).tolist() == neuron_mean(weight).tolist() == [0.0] * shape[0]


def test_one_dimensional_tensors_have_no_neurons():
    bias = torch.tensor([3.0, 1.0])
    assert torch.equal(project_(bias.clone()), bias)
    with pytest.raises(ValueError, match="two or more dims"):
        neuron_norm(bias)
    with pytest.raises(ValueError, match="two or more dims"):
        neuron_mean(bias)


def test_neuron_mean_and_norm_of_convolution():
    (weight,) = references.draw(0, [(4, 3, 2, 2)])
    torch.testing.assert_close(neuron_mean(weight), weight.mean((1, 2, 3)))
    torch.testing.assert_close(neuron_norm(weight), weight.flatten(1).norm(dim=1))
    assert neuron_norm(weight.bfloat16()).dtype == torch.float32


def test_project_all_matches_projection_of_each_tensor():
    together, alone = references.parameters(), references.parameters()
    biases = [bias.detach().clone() for bias in together if bias.ndim < 2]
    project_all_(together, foreach=True)
    for weight in alone:
        project_(weight)
    for a, b in zip(together, alone, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)
    references.assert_same([bias for bias in together if bias.ndim < 2], biases)


def test_projection_makes_no_host_reads():
    weights = references.draw(0)
    with references.NoHostReads():
        project_all_(weights, foreach=True)
        project_all_(weights, mean=False)
        project_all_(weights, norm=False)


def test_project_with_dtype_uses_tolerance_of_that_dtype():
    rows = project(references.draw(0, [(4, 100)])[0].bfloat16())
    # Balanced to the precision of bfloat16, but not to that of float32, in which a step is computed.
    assert torch.equal(project(rows.float(), dtype=torch.bfloat16), rows)
    assert not torch.equal(project(rows.float()), rows.float())
