"""The two transformers: parameter counts, initialisation, outputs compared with torch's layers, and padding."""

import math

import pytest
import torch
import torch.nn.functional as F
from hydra.utils import instantiate
from torch import Tensor, nn
from torch._dynamo.utils import counters

from nero.data.text.parallel_text import PAD
from nero.engine.compilation import compile_networks
from nero.models import attention
from nero.models.attention import take_tokens, token_indices
from nero.models.language_model import LanguageModel
from nero.models.token_loss import token_loss
from nero.models.translator import EPSILON, Translator
from nero.plans.config import compose
from support.fused_steps import DEVICE


def language_model(**settings: object) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(
        **{"vocabulary": 50, "width": 12, "heads": 3, "inner": 16, "dropout": 0.0, **settings}
    ).double()


def translator(**settings: object) -> Translator:
    torch.manual_seed(0)
    small = {"vocabulary": 40, "width": 16, "heads": 2, "inner": 24, "layers": 2, "dropout": 0.0}
    return Translator(**{**small, **settings}).double()


def tokens(*shape: int, vocabulary: int = 40, seed: int = 0) -> Tensor:
    return torch.randint(1, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


# parameter counts and initialisation


def test_language_model_of_the_paper_has_19_parameter_tensors() -> None:
    with torch.device("meta"):
        shapes = [tuple(parameter.shape) for parameter in LanguageModel(33_278).parameters()]
    layer = [(600, 200), (600,), (200, 200), (200,), (200, 200), (200,), (200, 200), (200,)]
    assert shapes == [(33_278, 200), *layer, *layer, (33_278, 200), (33_278,)]
    assert len(shapes) == 19


def test_translator_of_the_paper_has_121_parameter_tensors() -> None:
    with torch.device("meta"):
        parameters = list(Translator(9_521).parameters())
    assert len(parameters) == 121
    assert sum(parameter.numel() for parameter in parameters) == 48_945_664
    assert sum(parameter.ndim == 1 for parameter in parameters) == 24, "biases of the feed-forward parts, and no gains"


def test_language_model_initialisation_follows_protocol() -> None:
    torch.manual_seed(0)
    network = LanguageModel(2_000)
    for weight in (network.embedding.weight, network.output.weight):
        assert 0.0999 < weight.max() <= 0.1
        assert -0.1 <= weight.min() < -0.0999
        assert weight.std().item() == pytest.approx(0.1 / math.sqrt(3), rel=0.01)
    assert not network.output.bias.any()
    with_norm = nn.TransformerEncoderLayer(200, 2, 200)
    theirs = {name: value for name, value in with_norm.named_parameters() if "norm" not in name}
    for ours, (name, value) in zip(network.layers[0].parameters(), theirs.items(), strict=True):
        assert ours.std().item() == pytest.approx(value.std().item(), rel=0.15), name


def test_language_model_config_starts_with_identical_layers() -> None:
    """nn.TransformerEncoder deep-copies the layer that it is given."""
    theirs = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8), num_layers=2).layers
    assert all(torch.equal(a, b) for a, b in zip(theirs[0].parameters(), theirs[1].parameters(), strict=True))
    torch.manual_seed(0)
    shipped = instantiate(compose(["task=wikitext2_transformer"]).cfg.task.network)(vocabulary=50)
    torch.manual_seed(0)
    apart = LanguageModel(50)
    first, second = (list(layer.parameters()) for layer in shipped.layers)
    assert all(torch.equal(a, b) and a is not b for a, b in zip(first, second, strict=True))
    for a, b in zip(apart.layers[0].parameters(), apart.layers[1].parameters(), strict=True):
        assert a.ndim == 1 or not torch.equal(a, b)
    others = (name for name in apart.state_dict() if not name.startswith("layers.1."))
    assert all(torch.equal(apart.state_dict()[name], shipped.state_dict()[name]) for name in others)


def test_translator_starts_xavier_uniform() -> None:
    torch.manual_seed(0)
    network = Translator(1_000, layers=1)
    for parameter in network.parameters():
        if parameter.ndim > 1:
            bound = math.sqrt(6 / sum(parameter.shape))
            assert parameter.abs().max() <= bound
            assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def test_heads_must_divide_the_width() -> None:
    for network in (LanguageModel, Translator):
        with pytest.raises(ValueError, match="width must be a multiple of heads: 10 is not a multiple of 3"):
            network(5, width=10, heads=3)


# outputs


def test_sinusoidal_positions_match_formula() -> None:
    found = attention.sinusoidal_positions(6, 5)
    for position in range(6):
        for place in range(5):
            angle = position / 10_000 ** (2 * (place // 2) / 5)
            wanted = math.cos(angle) if place % 2 else math.sin(angle)
            assert found[position, place] == pytest.approx(wanted, abs=1e-6)


def test_language_model_matches_torch_encoder_without_layer_norm() -> None:
    network = language_model()
    x = tokens(4, 9, vocabulary=50)
    layers = []
    for layer in network.layers:
        theirs = nn.TransformerEncoderLayer(12, 3, 16, dropout=0.0, batch_first=True).double()
        theirs.norm1, theirs.norm2 = nn.Identity(), nn.Identity()
        named = [value for name, value in theirs.named_parameters() if "norm" not in name]
        with torch.no_grad():
            for ours, value in zip(layer.parameters(), named, strict=True):
                value.copy_(ours)
        layers.append(theirs)
    positions = attention.sinusoidal_positions(512, 12)[:9]
    hidden = math.sqrt(12) * F.embedding(x, network.embedding.weight) + positions
    mask = nn.Transformer.generate_square_subsequent_mask(9).double()
    for layer in layers:
        hidden = layer(hidden, src_mask=mask, is_causal=True)
    features = network(x)
    torch.testing.assert_close(features, hidden)
    gradient = torch.autograd.grad(features.square().sum(), network.embedding.weight)[0]
    torch.testing.assert_close(gradient, torch.autograd.grad(hidden.square().sum(), network.embedding.weight)[0])


def test_language_model_is_causal() -> None:
    network = language_model()
    x = tokens(1, 8, vocabulary=50)
    changed = x.clone()
    changed[0, 5] = (x[0, 5] + 1) % 50
    first, second = network(x), network(changed)
    assert torch.equal(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


def torch_translator(network: Translator, source: Tensor, target: Tensor) -> Tensor:
    """Output of nn.TransformerEncoderLayer and nn.TransformerDecoderLayer with the same weights."""
    width, heads = network.embedding.embedding_dim, network.encoder[0].attention.heads
    inner = network.encoder[0].feed_forward.inner.out_features
    settings = {"dropout": 0.0, "batch_first": True, "layer_norm_eps": EPSILON}

    def enter(ids: Tensor) -> Tensor:
        x = F.embedding(ids, network.embedding.weight) + network.positions[: ids.shape[1]]
        return F.layer_norm(x, (width,), eps=EPSILON)

    def fill(theirs: nn.MultiheadAttention, ours: nn.Module) -> None:
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key.weight, ours.value.weight]))
        theirs.out_proj.weight.copy_(ours.merge.weight)
        theirs.in_proj_bias.zero_()
        theirs.out_proj.bias.zero_()

    hidden = source == network.padding
    memory = enter(source)
    for ours in network.encoder:
        layer = nn.TransformerEncoderLayer(width, heads, inner, **settings).double()
        with torch.no_grad():
            fill(layer.self_attn, ours.attention)
            layer.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            layer.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
        memory = layer(memory, src_key_padding_mask=hidden)
    x = enter(target)
    causal = torch.ones(target.shape[1], target.shape[1], dtype=torch.bool).triu(1)
    for ours in network.decoder:
        layer = nn.TransformerDecoderLayer(width, heads, inner, **settings).double()
        with torch.no_grad():
            fill(layer.self_attn, ours.attention)
            fill(layer.multihead_attn, ours.to_source)
            layer.linear1.load_state_dict(ours.feed_forward.inner.state_dict())
            layer.linear2.load_state_dict(ours.feed_forward.outer.state_dict())
        x = layer(x, memory, tgt_mask=causal, memory_key_padding_mask=hidden)
    return x


def test_translator_matches_torch_layers() -> None:
    network = translator()
    source, target = tokens(3, 7), tokens(3, 6, seed=1)
    source[1, 4:] = PAD
    torch.testing.assert_close(network(source, target), torch_translator(network, source, target))


def test_encode_then_decode_equals_forward() -> None:
    network = translator()
    source, target = tokens(3, 7), tokens(3, 6, seed=1)
    source[0, 2:] = PAD
    found = network.decode(target, network.encode(source), network.mask(source))
    torch.testing.assert_close(found, network(source, target))


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("normalise", [False, True])
def test_embedding_scale_and_input_norm_are_configurable(scale: bool, normalise: bool) -> None:
    network = translator(scale_embedding=scale, normalise_input=normalise)
    source = tokens(2, 4)
    x = (4.0 if scale else 1.0) * network.embedding.weight[source] + network.positions[:4]
    wanted = F.layer_norm(x, (16,), eps=EPSILON) if normalise else x
    torch.testing.assert_close(network._enter(network._embed(source)), wanted)


def loss_and_gradients(network: Translator, source: Tensor, target: Tensor) -> list[Tensor]:
    features = network(source, target[:, :-1])
    loss = token_loss(features, network.output_weight, None, target[:, 1:], 0.1, ignore_index=PAD).loss
    return [loss, *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize(("rows", "source_length", "target_length"), [(3, 9, 8), (5, 7, 6), (8, 16, 17)])
def test_padding_changes_neither_loss_nor_gradients(rows: int, source_length: int, target_length: int) -> None:
    network = translator()
    source, target = tokens(3, 7), tokens(3, 6, seed=1)
    source[1, 4:], target[1, 5:] = PAD, PAD
    wanted = loss_and_gradients(network, source, target)
    more_source, more_target = torch.full((rows, source_length), PAD), torch.full((rows, target_length), PAD)
    more_source[:3, :7], more_target[:3, :6] = source, target
    found = loss_and_gradients(network, more_source, more_target)
    assert all(value.isfinite().all() for value in found)
    torch.testing.assert_close(found, wanted)
    # Also pair by pair, without any padding.
    alone = [
        loss_and_gradients(network, source[i : i + 1, :s], target[i : i + 1, :t])
        for i, (s, t) in enumerate([(7, 6), (4, 5), (7, 6)])
    ]
    torch.testing.assert_close([sum(values) for values in zip(*alone, strict=True)], wanted)


def packed_loss_and_gradients(network: Translator, source: Tensor, target: Tensor, slots: int) -> list[Tensor]:
    """Loss and gradients computed on packed tokens, without padding."""
    in_source, in_target = (
        token_indices((side != PAD).sum(1)[None], torch.tensor([side.shape[1]], device=side.device), slots)[0]
        for side in (source, target[:, 1:])
    )
    features = network(source, target[:, :-1], (in_source, in_target))
    assert features.shape[0] == len(in_target)
    wanted = take_tokens(target[:, 1:], in_target, PAD)
    loss = token_loss(features, network.output_weight, None, wanted, 0.1, ignore_index=PAD).loss
    return [loss, *torch.autograd.grad(loss, list(network.parameters()))]


@pytest.mark.parametrize("slots", [18, 19, 40])
@pytest.mark.parametrize("rows", [3, 5])
def test_packed_loss_and_gradients_match_padded(rows: int, slots: int) -> None:
    network = translator()
    source, target = torch.full((rows, 7), PAD), torch.full((rows, 8), PAD)
    source[:3], target[:3, :6] = tokens(3, 7), tokens(3, 6, seed=1)
    source[1, 4:], target[1, 5:], target[2, 3:] = PAD, PAD, PAD
    found = packed_loss_and_gradients(network, source, target, slots)
    torch.testing.assert_close(found, loss_and_gradients(network, source, target))


@pytest.mark.slow
def test_packed_loss_and_gradients_with_kernels_match_padded(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(attention, "_has_kernels", lambda device: True)
    network = translator(width=32).float().to(DEVICE)
    source, target = tokens(5, 20).to(DEVICE), tokens(5, 21, seed=1).to(DEVICE)
    source[1, 4:], target[1, 5:], target[2, 3:], source[4], target[4] = PAD, PAD, PAD, PAD, PAD
    found = packed_loss_and_gradients(network, source, target, 80)
    torch.testing.assert_close(found, loss_and_gradients(network, source, target), rtol=1e-4, atol=1e-5)


def test_dropout_is_active_only_in_training() -> None:
    for network, inputs in (
        (language_model(dropout=0.5), (tokens(2, 5),)),
        (translator(dropout=0.5), (tokens(2, 5), tokens(2, 4))),
    ):
        assert not torch.equal(network(*inputs), network(*inputs))
        network.eval()
        assert torch.equal(network(*inputs), network(*inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mask_has_autocast_dtype(dtype: torch.dtype) -> None:
    network = translator().float()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        assert network.mask(tokens(2, 3)).dtype == dtype
        network(tokens(2, 3), tokens(2, 4))


def compile_without_code(network: Translator, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Compile a network's parts without generating device code; returns counters such as "unique_graphs"."""
    torch.compiler.reset()
    counters.clear()
    for part in network.compiled_parts():
        monkeypatch.setattr(
            part, "compile", lambda part=part, **words: nn.Module.compile(part, backend="aot_eager", **words)
        )
    compile_networks({"network": network})
    return counters["stats"]


@pytest.mark.slow
def test_identical_layers_compile_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    network, plain = translator(layers=3), translator(layers=3)
    counts = compile_without_code(network, monkeypatch)
    for length in (5, 8, 11):
        source, target = tokens(4, length), tokens(4, length, seed=1)
        torch.testing.assert_close(network(source, target), plain(source, target))
    assert counts["unique_graphs"] == 2, "an encoder layer and a decoder layer"


def fake_attention_kernel(
    inputs: tuple[Tensor, ...], outer: Tensor, gradients: tuple[Tensor | None, ...], *_: object
) -> None:
    """A stand-in for the kernels in tests of compilation."""
    if gradients[0] is None:
        outer.copy_(inputs[0].cos())
    else:
        for gradient in gradients:
            gradient.fill_(2)


@pytest.mark.slow
@pytest.mark.parametrize("by_kernels", [False, True])
def test_identical_layers_compile_once_for_packed_input(monkeypatch: pytest.MonkeyPatch, by_kernels: bool) -> None:
    if by_kernels:
        kernels = pytest.importorskip("nero.models.kernels.attention")
        monkeypatch.setattr(attention, "_has_kernels", lambda device: True)
        monkeypatch.setitem(attention.LONGEST, torch.float64, 32)
        monkeypatch.setattr(kernels, "launch", fake_attention_kernel)
    network, plain = (translator(layers=2 if by_kernels else 3, width=32).to(DEVICE) for _ in range(2))
    counts = compile_without_code(network, monkeypatch)
    for rows, length, slots in ((4, 6, 24), (4, 9, 40), (5, 9, 56)):
        source, target = tokens(rows, length).to(DEVICE), tokens(rows, length + 1, seed=1).to(DEVICE)
        source[1, 3:], target[2, 4:] = PAD, PAD
        found = packed_loss_and_gradients(network, source, target, slots)
        torch.testing.assert_close(found, packed_loss_and_gradients(plain, source, target, slots))
    assert counts["unique_graphs"] == 2, "an encoder layer and a decoder layer"
