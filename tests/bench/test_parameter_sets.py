"""Tests of the parameter shapes of known networks."""

import pytest
from benchmarks.parameter_sets import PARAMETER_SETS, small

COUNTS = {
    "mlp5": (5, 2_466_464),
    "mlp100": (200, 60_936_410),
    "vgg11": (14, 28_141_258),
    "resnet18": (62, 11_173_962),
    "wikitext2": (19, 13_826_878),
    "translation": (121, 48_945_664),
    "pong": (12, 866_439),
    "resnet50": (161, 25_557_032),
    "billion": (268, 1_212_909_568),
}


@pytest.mark.parametrize("name", PARAMETER_SETS)
def test_tensor_and_parameter_counts_match_network(name: str) -> None:
    chosen = PARAMETER_SETS[name]
    assert (len(chosen.shapes()), chosen.parameters()) == COUNTS[name]
    assert chosen.description


def test_small_clips_dimension_sizes() -> None:
    assert small([(64, 3, 7, 7), (1000,), ()], largest=5) == [(5, 3, 5, 5), (5,), ()]
