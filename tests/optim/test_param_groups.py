"""Param groups by role, on networks of torchvision, our own, and stand-ins for those of transformers."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from nero import Nero, param_groups
from nero.models.biggan import Discriminator, Generator
from nero.models.language_model import LanguageModel
from nero.models.mlp import MLP
from nero.models.policy import Policy
from nero.models.translator import Translator
from nero.optim import ParamGroups, neuron_norm

NEURONS, COLUMNS, FREE = ("neurons", 0), ("neurons", 1), ("unconstrained", None)
EMBEDDING, HEAD, GAIN, BIAS = ("embeddings", 0), ("head", 0), ("gains", None), ("biases", None)
Sorted = dict[str, tuple[str, int | None]]


def sorted_names(model: nn.Module, *args: Any, **settings: Any) -> Sorted:
    """Role and neuron dim of each parameter by its name, after checking that every one is in exactly one group."""
    groups = param_groups(model, *args, **settings)
    listed = [pair for group in groups for pair in group["params"]]
    assert sorted(name for name, _ in listed) == sorted(name for name, _ in model.named_parameters())
    assert all(param is model.get_parameter(name) for name, param in listed)
    return {name: (group["role"], group.get("neuron_dim", 0)) for group in groups for name, _ in group["params"]}


def assert_sorted(model: nn.Module, expected: Sorted) -> None:
    found = sorted_names(model)
    assert {name: found[name] for name in expected} == expected


# ------------------------------------------------------------------------------------------------ whole networks


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets(name: str) -> None:
    with torch.device("meta"):
        model = getattr(torchvision.models, name)()
    for parameter, place in sorted_names(model).items():
        is_norm = "bn" in parameter or "downsample.1" in parameter
        if parameter.endswith("bias"):
            assert place == BIAS
        else:
            assert place == (GAIN if is_norm else HEAD if parameter == "fc.weight" else NEURONS)


def test_vision_transformer() -> None:
    with torch.device("meta"):
        model = torchvision.models.vit_b_16()
    layer = "encoder.layers.encoder_layer_0"
    assert_sorted(
        model,
        {
            "class_token": FREE,
            "encoder.pos_embedding": FREE,
            "conv_proj.weight": NEURONS,
            f"{layer}.ln_1.weight": GAIN,
            f"{layer}.self_attention.in_proj_weight": NEURONS,
            f"{layer}.self_attention.in_proj_bias": BIAS,
            f"{layer}.self_attention.out_proj.weight": NEURONS,
            f"{layer}.mlp.3.weight": NEURONS,
            "encoder.ln.bias": BIAS,
            "heads.head.weight": HEAD,
        },
    )


def test_swin() -> None:
    with torch.device("meta"):
        model = torchvision.models.swin_t()
    block = "features.1.0"
    assert_sorted(
        model,
        {
            "features.0.0.weight": NEURONS,
            "features.0.2.weight": GAIN,
            f"{block}.attn.relative_position_bias_table": BIAS,
            f"{block}.attn.qkv.weight": NEURONS,
            "features.2.reduction.weight": NEURONS,
            "norm.weight": GAIN,
            "head.weight": HEAD,
        },
    )


def test_convnext_keeps_its_layer_scales_when_constructed() -> None:
    with torch.device("meta"):
        whole = torchvision.models.convnext_tiny()
    expected = {
        "features.0.0.weight": NEURONS,
        "features.0.1.weight": GAIN,
        "features.1.0.layer_scale": GAIN,
        "features.1.0.block.0.weight": NEURONS,
        "classifier.0.weight": GAIN,
        "classifier.2.weight": HEAD,
    }
    assert_sorted(whole, expected)

    torch.manual_seed(0)
    setting = torchvision.models.convnext.CNBlockConfig
    model = torchvision.models.ConvNeXt([setting(8, 16, 1), setting(16, None, 1)], num_classes=3)
    assert_sorted(model, {**expected, "features.3.0.layer_scale": GAIN})
    scale = model.features[1][0].layer_scale
    before = scale.detach().clone()
    optimizer = Nero(param_groups(model), lr=0.01)
    assert torch.equal(scale, before)
    images = torch.randn(4, 3, 32, 32)
    for _ in range(3):
        optimizer.zero_grad()
        outputs = model(images)
        outputs.square().mean().backward()
        optimizer.step()
    assert model(images).isfinite().all()
    # Three steps of at most lr times the scale of the tensor; normalised to one it would have grown a million times.
    assert not torch.equal(scale, before)
    assert (scale - before).abs().max() < 0.1 * before.abs().max()


def test_generator() -> None:
    assert_sorted(
        Generator(width=8, rows=12),
        {
            "embedding.weight": NEURONS,
            "block1.norm1.gain.weight": NEURONS,
            "block1.norm1.bias.weight": NEURONS,
            "block1.norm1.bias.bias": BIAS,
            "attention.query.weight": NEURONS,
            "norm.weight": GAIN,
            "last.weight": HEAD,
        },
    )


def test_discriminator() -> None:
    found = sorted_names(Discriminator(width=8, rows=12))
    assert (found["classes.weight"], found["score.weight"], found["block1.conv1.bias"]) == (EMBEDDING, HEAD, BIAS)
    assert {place for name, place in found.items() if "conv" in name and name.endswith("weight")} == {NEURONS}


def test_our_transformers() -> None:
    found = sorted_names(LanguageModel(20, width=8, inner=8))
    assert (found["embedding.weight"], found["output.weight"], found["output.bias"]) == (EMBEDDING, HEAD, BIAS)
    assert found["layers.0.query_key_value.weight"] == NEURONS
    # Features are multiplied by the embedding: no layer of its own produces the output.
    found = sorted_names(Translator(20, width=8, heads=2, inner=8, layers=1))
    assert found.pop("embedding.weight") == EMBEDDING
    assert set(found.values()) == {NEURONS, BIAS}


def test_perceptron_ends_in_its_head() -> None:
    found = sorted_names(MLP(depth=3, width=5, classes=2))
    assert [found[f"layers.{i}.weight"] for i in range(3)] == [NEURONS, NEURONS, HEAD]
    wrapped = torch.nn.DataParallel(nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1), nn.Softmax(1)))
    assert sorted_names(wrapped)["module.2.weight"] == HEAD


def test_several_heads_are_given_by_name() -> None:
    found = sorted_names(Policy(actions=3, hidden=4), {"policy.weight": "head", "value.weight": "head"})
    assert [name for name, place in found.items() if place == HEAD] == ["policy.weight", "value.weight"]


class Conv1D(nn.Module):
    """Of transformers: x @ weight + bias."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.zeros(nf))


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))


class GPT2Like(nn.Module):
    """Learnt positions, Conv1D, and an output layer that shares its weight with the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(7, 4), nn.Embedding(5, 4)
        self.ln_1, self.c_attn, self.c_proj = nn.LayerNorm(4), Conv1D(12, 4), Conv1D(4, 4)
        self.lm_head = nn.Linear(4, 7, bias=False)
        self.lm_head.weight = self.wte.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head


def test_gpt2_like() -> None:
    assert sorted_names(GPT2Like()) == {
        "wte.weight": EMBEDDING,
        "wpe.weight": EMBEDDING,
        "ln_1.weight": GAIN,
        "ln_1.bias": BIAS,
        "c_attn.weight": COLUMNS,
        "c_attn.bias": BIAS,
        "c_proj.weight": COLUMNS,  # square, so its shape does not tell
        "c_proj.bias": BIAS,
    }


class LlamaLike(nn.Module):
    """RMS norms and no biases; which layer produces the output, only the model says."""

    def __init__(self) -> None:
        super().__init__()
        self.unembed = nn.Linear(4, 7, bias=False)
        self.embed_tokens, self.norm = nn.Embedding(7, 4), RMSNorm(4)
        self.gate_proj, self.down_proj = nn.Linear(4, 8, bias=False), nn.Linear(8, 4, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        return self.unembed


def test_llama_like() -> None:
    assert sorted_names(LlamaLike()) == {
        "unembed.weight": HEAD,
        "embed_tokens.weight": EMBEDDING,
        "norm.weight": GAIN,
        "gate_proj.weight": NEURONS,
        "down_proj.weight": NEURONS,
    }


def test_t5_like() -> None:
    """Relative positions are an embedding of biases: a row has one for each head, added to its attention scores."""
    attention = nn.Module()
    attention.q, attention.o = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
    attention.relative_attention_bias = nn.Embedding(32, 2)
    model = nn.ModuleDict({"shared": nn.Embedding(7, 4), "attention": attention, "layer_norm": RMSNorm(4)})
    found = sorted_names(model)
    assert found["shared.weight"] == EMBEDDING
    assert found["attention.relative_attention_bias.weight"] == BIAS
    assert found["layer_norm.weight"] == GAIN
    before = attention.relative_attention_bias.weight.detach().clone()
    Nero(param_groups(model))
    assert torch.equal(attention.relative_attention_bias.weight, before)


# ------------------------------------------------------------------------------------------------- single layers


def weight_normed(layer: nn.Module) -> nn.Module:
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(layer)


class Stacked(nn.Module):
    """Parameters of three experts in one tensor each."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(3, 4, 5)), nn.Parameter(torch.zeros(3, 4))
        self.scales = nn.ParameterList([torch.ones(4), torch.ones(4, 1)])
        self.token = nn.Parameter(torch.zeros(4))


class OwnLinear(nn.Module):
    """A linear layer that is no nn.Linear, with its weight as given."""

    def __init__(self, inputs: int, outputs: int, weight: Tensor) -> None:
        super().__init__()
        self.in_features, self.out_features, self.weight = inputs, outputs, nn.Parameter(weight)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Sorted]] = {
    "bilinear": (lambda: nn.Bilinear(2, 3, 4), {"weight": NEURONS, "bias": BIAS}),
    "depthwise convolution": (lambda: nn.Conv2d(4, 4, 3, groups=4), {"weight": NEURONS}),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 6, 3), {"weight": COLUMNS, "bias": BIAS}),
    "transposed depthwise convolution": (lambda: nn.ConvTranspose1d(4, 4, 3, groups=4), {"weight": NEURONS}),
    "transposed convolution with two filters a channel": (
        lambda: nn.ConvTranspose1d(4, 8, 3, groups=4),
        {"weight": FREE},
    ),
    "transposed convolution in groups": (lambda: nn.ConvTranspose1d(4, 4, 3, groups=2), {"weight": FREE}),
    "embedding bag": (lambda: nn.EmbeddingBag(5, 3), {"weight": EMBEDDING}),
    "LSTM": (
        lambda: nn.LSTM(3, 4, proj_size=2),
        {"weight_ih_l0": NEURONS, "weight_hh_l0": NEURONS, "weight_hr_l0": NEURONS, "bias_ih_l0": BIAS},
    ),
    "GRU cell": (lambda: nn.GRUCell(3, 4), {"weight_ih": NEURONS, "bias_hh": BIAS}),
    "attention": (
        lambda: nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True),
        {
            "q_proj_weight": NEURONS,
            "v_proj_weight": NEURONS,
            "bias_k": BIAS,
            "out_proj.bias": BIAS,
        },
    ),
    "layer norm over images": (lambda: nn.LayerNorm([3, 4, 4]), {"weight": GAIN, "bias": BIAS}),
    "PReLU": (nn.PReLU, {"weight": GAIN}),
    "spectral norm, old": (lambda: nn.utils.spectral_norm(nn.Conv1d(2, 3, 3)), {"weight_orig": NEURONS}),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.ConvTranspose1d(2, 3, 3)),
        {"parametrizations.weight.original": COLUMNS, "bias": BIAS},
    ),
    "weight norm, old": (lambda: weight_normed(nn.Linear(2, 3)), {"weight_g": GAIN, "weight_v": NEURONS}),
    "weight norm": (
        lambda: parametrizations.weight_norm(nn.Conv1d(2, 3, 3)),
        {"parametrizations.weight.original0": GAIN, "parametrizations.weight.original1": NEURONS},
    ),
    "orthogonal": (lambda: parametrizations.orthogonal(nn.Linear(3, 3)), {"parametrizations.weight.original": FREE}),
    "stacked": (
        Stacked,
        {"weight": FREE, "bias": BIAS, "scales.0": GAIN, "scales.1": GAIN, "token": FREE},
    ),
    "own linear layer": (lambda: OwnLinear(3, 4, torch.randn(4, 3)), {"weight": NEURONS}),
    "own layer of another shape": (lambda: OwnLinear(3, 4, torch.randn(3, 4)), {"weight": FREE}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    """Followed by an output layer, so that they are not taken for the head."""
    make, expected = LAYERS[name]
    model = nn.Sequential(make(), nn.Linear(3, 2))
    assert_sorted(model, {"1.weight": HEAD, **{f"0.{own}": place for own, place in expected.items()}})


def test_parametrized_model_itself() -> None:
    model = parametrizations.weight_norm(nn.Linear(3, 2))
    assert sorted_names(model)["parametrizations.weight.original1"] == HEAD
    assert parametrize.is_parametrized(model)


# ----------------------------------------------------------------------------------------------------- settings


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 3))


def group_of(groups: ParamGroups, name: str) -> dict[str, Any]:
    [group] = [group for group in groups if name in dict(group["params"])]
    return {key: value for key, value in group.items() if key != "params"}


def test_groups_have_only_settings_that_differ_from_defaults() -> None:
    groups = param_groups(network())
    assert [{**group, "params": [name for name, _ in group["params"]]} for group in groups] == [
        {"params": ["0.weight", "2.weight"], "role": "neurons"},
        {"params": ["4.weight"], "role": "head"},
        {"params": ["1.weight"], "role": "gains", "neuron_dim": None},
        {"params": ["0.bias", "1.bias", "2.bias", "4.bias"], "role": "biases", "neuron_dim": None},
    ]


def test_settings_of_roles_reach_the_optimiser() -> None:
    model = network()
    before = model[4].weight.detach().clone()
    optimizer = Nero(param_groups(model, head={"mean": False, "norm": False}, biases={"sigma_b": 1.0}), lr=0.02)
    assert torch.equal(model[4].weight, before)
    torch.testing.assert_close(neuron_norm(model[0].weight), torch.ones(6))
    by_role = {group["role"]: group for group in optimizer.param_groups}
    assert [group["lr"] for group in optimizer.param_groups] == [0.02] * 4
    assert (by_role["head"]["norm"], by_role["neurons"]["norm"]) == (False, True)
    assert (by_role["biases"]["sigma_b"], by_role["gains"]["sigma_b"]) == (1.0, 0.01)
    assert by_role["neurons"]["param_names"] == ["0.weight", "2.weight"]


def test_a_setting_is_kept_even_where_it_is_the_default() -> None:
    """The optimiser may be given another for all groups."""
    optimizer = Nero(param_groups(network(), head={"norm": True, "lr": 0.01}), lr=0.1, norm=False)
    assert [(group["norm"], group["lr"]) for group in optimizer.param_groups] == [(False, 0.1), (True, 0.01)] + 2 * [
        (False, 0.1)
    ]


def test_overrides_by_name() -> None:
    groups = param_groups(
        network(),
        {"*.bias": {"lr": 0.1}, "4.*": {"lr": 0.2}, "2.weight": "unconstrained", "0.weight": {"role": "head"}},
        head={"norm": False},
    )
    assert group_of(groups, "0.bias") == {"role": "biases", "neuron_dim": None, "lr": 0.1}
    assert group_of(groups, "4.bias") == {"role": "biases", "neuron_dim": None, "lr": 0.2}
    assert group_of(groups, "4.weight") == {"role": "head", "norm": False, "lr": 0.2}
    assert group_of(groups, "0.weight") == {"role": "head", "norm": False}
    assert group_of(groups, "2.weight") == {"role": "unconstrained", "neuron_dim": None}


def test_override_gives_unknown_weights_neurons() -> None:
    model = nn.Sequential(OwnLinear(3, 4, torch.randn(3, 4)), OwnLinear(3, 4, torch.randn(3, 4)), nn.Linear(4, 2))
    groups = param_groups(model, {"0.weight": "neurons", "1.weight": {"role": "neurons", "neuron_dim": 1}})
    assert group_of(groups, "0.weight") == {"role": "neurons"}
    assert group_of(groups, "1.weight") == {"role": "neurons", "neuron_dim": 1}
    # Another role with neurons keeps the dim that is known.
    groups = param_groups(GPT2Like(), {"c_proj.weight": "head"})
    assert group_of(groups, "c_proj.weight") == {"role": "head", "neuron_dim": 1}


@pytest.mark.parametrize(
    ("overrides", "roles", "message"),
    [
        ({"2.wieght": "head"}, {}, r"'2.wieght' matches no parameter \(did you mean 2.weight or"),
        ({"2.weight": "haed"}, {}, r"unknown role 'haed' \(did you mean head\?\); there are neurons, embeddings"),
        ({}, {"haed": {"norm": False}}, r"unknown role 'haed' \(did you mean head\?\)"),
        ({}, {"head": {"nrom": False}}, r"no setting 'nrom' \(did you mean norm"),
        ({}, {"head": {"role": "neurons"}}, "no setting 'role'"),
        ({"2.weight": {"meen": False}}, {}, r"no setting 'meen' \(did you mean mean"),
        (
            {},
            {"embeddings": {"norm": False}},
            "no parameter has the role 'embeddings', only neurons, head, gains, biases",
        ),
        ({"4.weight": "neurons"}, {"head": {"norm": False}}, "no parameter has the role 'head'"),
    ],
)
def test_what_matches_nothing_is_refused(overrides: dict[str, Any], roles: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        param_groups(network(), overrides, **roles)


def test_parameters_in_place_of_a_model_are_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"^param_groups takes a model, such as param_groups\(model\), not generator$"):
        param_groups(network().parameters())  # type: ignore[arg-type]


def test_frozen_parameters_are_sorted_like_others() -> None:
    model = network().requires_grad_(False)
    assert sorted_names(model) == sorted_names(network())


def test_sorting_changes_nothing() -> None:
    model, same = network(), network()
    param_groups(model)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))
    assert list(model.state_dict()) == list(same.state_dict())


# ------------------------------------------------------------------------------------------------------- tables


def test_table() -> None:
    groups = param_groups(network(), head={"mean": False, "norm": False})
    table = """
role     neuron dim  settings                tensors  parameters  example
neurons  0                                         2          60  0.weight
head     0           mean=False, norm=False        1          18  4.weight
gains    -                                         1           6  1.weight
biases   -                                         4          21  0.bias
total                                              8         105"""
    assert f"\n{groups}" == table


def test_table_after_an_optimiser_has_added_its_settings_to_the_groups() -> None:
    groups = param_groups(network(), head={"mean": False, "norm": False})
    Nero(groups, lr=torch.tensor(0.02))
    lines = str(groups).splitlines()
    assert lines[1].split() == ["neurons", "0", "lr=tensor(0.0200)", "2", "60", "0.weight"]
    assert lines[2].split() == ["head", "0", "mean=False,", "norm=False,", "lr=tensor(0.0200)", "1", "18", "4.weight"]


def test_neuron_dim_has_a_column_of_its_own() -> None:
    groups = param_groups(GPT2Like())
    Nero(groups, norm="initial")
    assert str(groups).splitlines()[1].split() == ["neurons", "1", "norm='initial'", "2", "64", "c_attn.weight"]


def test_table_of_every_parameter() -> None:
    table = param_groups(nn.Linear(3, 2), biases={"lr": 0.1}).every_parameter()
    assert (
        f"\n{table}"
        == """
parameter  shape   role    neuron dim  settings
weight     [2, 3]  head    0
bias       [2]     biases  -           lr=0.1"""
    )


def test_numbers_of_a_large_table_add_up() -> None:
    with torch.device("meta"):
        model = torchvision.models.convnext_tiny()
    *_, total = str(param_groups(model)).splitlines()
    count = sum(math.prod(param.shape) for param in model.parameters())
    assert total.split() == ["total", str(len([*model.parameters()])), f"{count:,}"]
