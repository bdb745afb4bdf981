"""The generator and the discriminator: parameter counts, and outputs compared with a plain reference."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nero.models.biggan import CHUNK, EMBEDDING, OUTPUT_SCALE, RUNNING, Discriminator, Generator, Z
from nero.models.spectral import Convolution, Embedding, Linear, SpectralNorm
from nero.optim import Nero

WIDTH, ROWS = 8, 12


def prepared(network: nn.Module) -> nn.Module:
    """Convert a network to float64, with random weights far from orthogonal and exact singular vectors."""
    network.double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
        for module in network.modules():
            if isinstance(module, Linear | Convolution | Embedding):
                weight = module.weight.permute(0, 2, 3, 1) if module.weight.ndim == 4 else module.weight
                left, _, right = torch.linalg.svd(weight.flatten(1), full_matrices=False)
                module.spectral_norm.u.copy_(left[:, 0])
                module.spectral_norm.v.copy_(right[0])
    return network


def normalised(layer: Linear | Convolution | Embedding) -> Tensor:
    return layer.weight / torch.linalg.matrix_norm(layer.weight.flatten(1), 2)


def linear(layer: Linear, x: Tensor) -> Tensor:
    return x @ normalised(layer).T + layer.bias


def convolved(layer: Convolution, x: Tensor) -> Tensor:
    return F.conv2d(x, normalised(layer), layer.bias, padding="same")


def attended(layer: nn.Module, x: Tensor) -> Tensor:
    """Self-attention, computed image by image and pixel by pixel."""
    queries, keys, values = (convolved(part, x) for part in (layer.query, layer.key, layer.value))
    keys, values = F.max_pool2d(keys, 2), F.max_pool2d(values, 2)
    seen = torch.zeros_like(queries[:, :1]).expand(-1, values.shape[1], -1, -1).clone()
    for image in range(len(x)):
        for row in range(x.shape[2]):
            for column in range(x.shape[3]):
                strengths = (keys[image].flatten(1).T @ queries[image, :, row, column]).softmax(dim=0)
                seen[image, :, row, column] = values[image].flatten(1) @ strengths
    return x + convolved(layer.output, seen)


def batch_normed(x: Tensor, norm: nn.BatchNorm2d, training: bool) -> Tensor:
    if training:
        mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), unbiased=False)
    else:
        mean, var = norm.running_mean, norm.running_var
    return (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()


def conditioned(norm: nn.Module, x: Tensor, condition: Tensor, training: bool) -> Tensor:
    gain, bias = (linear(layer, condition)[:, :, None, None] for layer in (norm.gain, norm.bias))
    return batch_normed(x, norm.norm, training) * (1 + gain) + bias


def up(block: nn.Module, x: Tensor, condition: Tensor, training: bool) -> Tensor:
    large = F.interpolate(x, scale_factor=2, mode="nearest")
    skip = large if block.shortcut is None else convolved(block.shortcut, large)
    out = F.interpolate(conditioned(block.norm1, x, condition, training).relu(), scale_factor=2, mode="nearest")
    out = conditioned(block.norm2, convolved(block.conv1, out), condition, training)
    return convolved(block.conv2, out.relu()) + skip


def generated(network: Generator, z: Tensor, labels: Tensor, training: bool) -> Tensor:
    one_hot = F.one_hot(labels, ROWS).double()
    embedded = linear(network.embedding, one_hot)
    conditions = [torch.cat([embedded, z[:, start : start + CHUNK]], dim=1) for start in (20, 40, 60)]
    x = linear(network.first, z[:, :CHUNK]).reshape(len(z), 4 * WIDTH, 4, 4)
    x = up(network.block1, x, conditions[0], training)
    x = up(network.block2, x, conditions[1], training)
    x = up(network.block3, attended(network.attention, x), conditions[2], training)
    x = batch_normed(x, network.norm, training)
    x = x * network.norm.weight[:, None, None] + network.norm.bias[:, None, None]
    return convolved(network.last, x.relu()).tanh()


def judged(network: Discriminator, images: Tensor, labels: Tensor) -> Tensor:
    first = network.block1
    x = F.avg_pool2d(convolved(first.conv2, convolved(first.conv1, images).relu()), 2)
    x = x + convolved(first.shortcut, F.avg_pool2d(images, 2))
    for block in (network.block2, network.block3, network.block4):
        out = convolved(block.conv2, convolved(block.conv1, x.relu()).relu())
        pooled = block is not network.block4
        x = F.avg_pool2d(out, 2) + F.avg_pool2d(convolved(block.shortcut, x), 2) if pooled else x + out
        if block is network.block2:
            x = attended(network.attention, x)
    features = x.relu().mean(dim=(2, 3))
    projection = (features * normalised(network.classes)[labels]).sum(dim=1)
    return 10 * (linear(network.score, features)[:, 0] + projection)


def batch(count: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(count, Z, dtype=torch.float64, generator=generator)
    images = torch.rand(count, 3, 32, 32, dtype=torch.float64, generator=generator) * 2 - 1
    return z, images, torch.tensor([4, 0, 9])[:count]


@pytest.mark.parametrize("network", [Generator, Discriminator])
def test_parameter_counts_match_authors_networks(network: type[Generator] | type[Discriminator]) -> None:
    tensors = [parameter.numel() for parameter in network().parameters()]
    expected = {Generator: (56, 2_183_091), Discriminator: (33, 2_644_129)}
    assert (len(tensors), sum(tensors)) == expected[network]


def test_ten_embedding_rows_remove_990_rows_of_parameters() -> None:
    few = sum(p.numel() for p in Generator(rows=10).parameters())
    assert few == 2_183_091 - 990 * EMBEDDING
    assert sum(p.numel() for p in Discriminator(rows=10).parameters()) == 2_644_129 - 990 * 256


def test_norm_bias_std_sets_initial_bias_of_last_batch_norm() -> None:
    starts = {}
    for std in (0.0, 0.01, 0.02):
        torch.manual_seed(0)
        starts[std] = Generator(width=64, rows=10, norm_bias_std=std).state_dict()
    assert not starts[0.0]["norm.bias"].any()
    assert starts[0.01]["norm.bias"].std().item() == pytest.approx(0.01, rel=0.3)
    torch.testing.assert_close(starts[0.02]["norm.bias"], 2 * starts[0.01]["norm.bias"])
    assert all(torch.equal(value, starts[0.01][name]) for name, value in starts[0.0].items() if name != "norm.bias")
    assert (starts[0.01]["norm.weight"] == 1).all()


def test_architecture_constants() -> None:
    assert (Z, CHUNK, EMBEDDING, OUTPUT_SCALE) == (80, 20, 80, 10)


def test_every_weight_matrix_has_spectral_norm() -> None:
    for network in (Generator(WIDTH, ROWS), Discriminator(WIDTH, ROWS)):
        normed = {id(m.weight) for m in network.modules() if isinstance(m, Linear | Convolution | Embedding)}
        assert {id(p) for p in network.parameters() if p.ndim > 1} == normed
        assert sum(isinstance(module, SpectralNorm) for module in network.modules()) == len(normed)


@pytest.mark.parametrize("training", [False, True])
def test_generator_matches_reference(training: bool) -> None:
    torch.manual_seed(0)
    network = prepared(Generator(WIDTH, ROWS)).train(training)
    z, _, labels = batch()
    with torch.no_grad():
        expected = generated(network, z, labels, training)
        torch.testing.assert_close(network(z, labels), expected, rtol=1e-9, atol=1e-9)
    assert float(expected.std()) > 0.1


def test_discriminator_matches_reference() -> None:
    torch.manual_seed(0)
    network = prepared(Discriminator(WIDTH, ROWS))
    _, images, labels = batch()
    with torch.no_grad():
        torch.testing.assert_close(network(images, labels), judged(network, images, labels), rtol=1e-9, atol=1e-9)


def test_generator_depends_on_class_and_every_chunk_of_z() -> None:
    torch.manual_seed(0)
    network = Generator(WIDTH, ROWS).eval()
    z, _, labels = batch()
    z = z.float()
    with torch.no_grad():
        before = network(z, labels)
        assert not torch.allclose(network(z, labels + 1), before)
        for start in range(0, Z, CHUNK):
            other = z.clone()
            other[:, start : start + CHUNK] += 1
            assert not torch.allclose(network(other, labels), before)


def test_conditional_batch_norm_has_momentum_of_one_thousandth() -> None:
    torch.manual_seed(0)
    network = Generator(WIDTH, ROWS)
    assert network.block1.norm1.norm.momentum == RUNNING == 0.001
    assert network.norm.momentum == 0.1
    z, _, labels = batch()
    network(z.float(), labels)
    assert float(network.block1.norm1.norm.running_var.max()) >= 0.999
    assert network.block1.norm1.norm.weight is None


def test_discriminator_scores_do_not_depend_on_rest_of_batch() -> None:
    torch.manual_seed(0)
    network = Discriminator(WIDTH, ROWS).eval()
    _, images, labels = batch()
    with torch.no_grad():
        together = network(images.float(), labels)
        alone = torch.cat([network(images[i : i + 1].float(), labels[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-4)


def test_scores_are_float32_under_autocast() -> None:
    torch.manual_seed(0)
    network = Discriminator(WIDTH, ROWS).eval()
    _, images, labels = batch()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        scores = network(images.float(), labels)
    assert scores.dtype == torch.float32
    torch.testing.assert_close(scores, network(images.float(), labels).detach(), rtol=0.1, atol=0.1)


def test_nero_moves_unused_embedding_rows_less_but_counts_them_in_norm() -> None:
    """The reason for 1,000 rows: each neuron of the generator's embedding spans all of them."""
    torch.manual_seed(0)
    network = Generator(WIDTH, ROWS)
    optimizer = Nero(network.parameters(), lr=0.01)
    weight = network.embedding.weight
    torch.testing.assert_close(weight.sum(dim=1), torch.zeros(EMBEDDING), atol=1e-5, rtol=0)
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(EMBEDDING))
    before = weight.detach().clone()
    z, _, labels = batch()
    network(z.float(), labels).square().mean().backward()
    used = torch.zeros(ROWS, dtype=torch.bool)
    used[labels] = True
    # Spectral norm spreads a gradient over all rows, along the first singular vectors; it is small in unused rows.
    assert float(weight.grad[:, ~used].norm()) < 0.5 * float(weight.grad[:, used].norm())
    optimizer.step()
    torch.testing.assert_close(weight.norm(dim=1), torch.ones(EMBEDDING))
    moved = weight.detach() - before
    assert float(moved[:, ~used].norm()) < float(moved[:, used].norm())
