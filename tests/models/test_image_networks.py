"""VGG-11, ResNet-18 for small images and ResNet-50, compared with torchvision's networks with the same weights."""

import math
from collections.abc import Iterable

import pytest
import torch
import torchvision.models
from hydra.utils import instantiate
from torch import Tensor, nn
from torchvision.models import resnet18
from torchvision.models.vgg import cfgs, make_layers

from nero.models.ghost_batch_norm import GhostBatchNorm2d
from nero.models.resnet import ResNet18
from nero.models.resnet50 import resnet50
from nero.models.vgg import VGG11, MaxPoolReLU
from nero.plans.config import compose

VGG11_SHAPES = [
    *[(64, 3, 3, 3), (128, 64, 3, 3), (256, 128, 3, 3), (256, 256, 3, 3)],
    *[(512, 256, 3, 3), (512, 512, 3, 3), (512, 512, 3, 3), (512, 512, 3, 3)],
    *[(4096, 512), (4096,), (4096, 4096), (4096,), (10, 4096), (10,)],
]


def images(count: int = 4, seed: int = 0) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def count(network: nn.Module) -> tuple[int, int]:
    """Number of parameter tensors and number of parameters."""
    parameters = list(network.parameters())
    return len(parameters), sum(map(Tensor.numel, parameters))


def copy_weights(source: Iterable[Tensor], target: Iterable[Tensor]) -> None:
    with torch.no_grad():
        for old, new in zip(source, target, strict=True):
            new.copy_(old)


def torchvision_resnet(ours: ResNet18) -> nn.Module:
    width = ours.stem.out_channels
    theirs = resnet18(num_classes=10)
    theirs.conv1, theirs.maxpool = nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.Identity()
    assert width == 64
    copy_weights(ours.state_dict().values(), theirs.state_dict().values())
    return theirs


def test_vgg11_has_parameter_shapes_of_the_paper() -> None:
    with torch.device("meta"):
        network = VGG11()
    assert [tuple(param.shape) for param in network.parameters()] == VGG11_SHAPES
    assert count(network) == (14, 28_141_258)
    assert not any(isinstance(module, nn.BatchNorm2d) for module in network.modules())


def test_resnet18_parameter_shapes_match_torchvision_except_stem() -> None:
    with torch.device("meta"):
        ours, theirs = ResNet18(), resnet18(num_classes=10)
    assert count(ours) == (62, 11_173_962)
    shapes, expected = ([tuple(p.shape) for p in network.parameters()] for network in (ours, theirs))
    assert shapes[0] == (64, 3, 3, 3)
    assert shapes[1:] == expected[1:]


def test_vgg11_features_match_torchvision() -> None:
    torch.manual_seed(0)
    ours = VGG11(width=64, hidden=32).eval()
    theirs = make_layers(cfgs["A"])
    convolutions = [module for module in theirs if isinstance(module, nn.Conv2d)]
    for convolution in convolutions:
        nn.init.zeros_(convolution.bias)
    copy_weights(
        (module.weight for module in ours.features if isinstance(module, nn.Conv2d)), (c.weight for c in convolutions)
    )
    torch.testing.assert_close(ours.features(images()), theirs(images()), rtol=1e-4, atol=1e-5)
    assert ours(images()).shape == (4, 10)


@pytest.mark.parametrize("training", [False, True])
def test_resnet18_forward_matches_torchvision(training: bool) -> None:
    torch.manual_seed(0)
    ours = ResNet18()
    theirs = torchvision_resnet(ours).train(training)
    ours.train(training)
    torch.testing.assert_close(ours(images()), theirs(images()), rtol=1e-4, atol=1e-4)
    for mine, other in zip(ours.buffers(), theirs.buffers(), strict=True):  # running means and variances
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-5)


def test_resnet50_state_dict_matches_torchvision() -> None:
    with torch.device("meta"):
        ours, theirs = resnet50(norm_parts=4), torchvision.models.resnet50()
    shapes, expected = ([(k, v.shape) for k, v in network.state_dict().items()] for network in (ours, theirs))
    assert shapes == expected
    assert count(ours) == (161, 25_557_032)
    norms = [module for module in ours.modules() if isinstance(module, nn.BatchNorm2d)]
    assert len(norms) == 53
    assert all(isinstance(norm, GhostBatchNorm2d) and norm.parts == 4 for norm in norms)


def test_resnet50_initialisation_and_forward_match_torchvision() -> None:
    networks = []
    for make in (resnet50, torchvision.models.resnet50):
        torch.manual_seed(0)
        networks.append(make(num_classes=7))
    x = torch.nn.functional.interpolate(images(), 64)
    for training in (True, False):  # evaluation uses the running statistics of training
        ours, theirs = (network.train(training)(x) for network in networks)
        assert ours.shape == (4, 7)
        assert torch.equal(ours, theirs)
    states = (network.state_dict().values() for network in networks)
    assert all(torch.equal(mine, other) for mine, other in zip(*states, strict=True))


def test_resnet50_with_two_norm_parts_matches_each_half_separately() -> None:
    torch.manual_seed(0)
    small = {"num_classes": 3, "layers": (1, 1, 1, 1)}
    ours, theirs = resnet50(norm_parts=2, **small), resnet50(**small)
    theirs.load_state_dict(ours.state_dict())
    assert count(ours)[0] == 3 + 4 * 12 + 2, "stem, a block with its shortcut in each stage, head"
    x = images(8) * torch.linspace(0.5, 2, 8).reshape(-1, 1, 1, 1)
    apart = torch.cat([theirs(half) for half in x.chunk(2)])
    torch.testing.assert_close(ours(x), apart, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(theirs(x), apart, rtol=1e-2), "else parts would make no difference"
    with pytest.raises(ValueError, match=r"layers must be 4 numbers, one for each stage, not \[3, 4, 6\]"):
        resnet50(layers=[3, 4, 6])


def test_max_pool_relu_matches_relu_then_max_pool() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 2, 8, 8, generator=generator)
    x[0, 0, :4] = x[0, 0, :4].round()  # ties, including zeros
    x[1, 1, :2, :2] = float("nan")
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    out, expected = MaxPoolReLU()(ours), nn.functional.max_pool2d(nn.functional.relu(theirs), 2)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)
    weights = torch.randn(out.shape, generator=generator)
    for result in (out, expected):
        (result * weights)[result > -1].sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


def test_vgg11_convolutions_start_kaiming_fan_out() -> None:
    torch.manual_seed(0)
    for module in VGG11().features:
        if isinstance(module, nn.Conv2d):
            std = math.sqrt(2 / (9 * module.out_channels))
            assert module.weight.std().item() == pytest.approx(std, rel=0.05)
            assert abs(module.weight.mean().item()) < 0.05 * std


def test_resnet18_initialisation_with_and_without_fan_out() -> None:
    torch.manual_seed(0)
    usual, larger, theirs = ResNet18(), ResNet18(fan_out=True), resnet18(num_classes=10)
    weights = [[p for p in network.parameters() if p.ndim == 4][1:] for network in (usual, larger, theirs)]
    for default, ours, other in zip(*weights, strict=True):  # except the stem, which has another size
        assert default.std().item() == pytest.approx(1 / math.sqrt(3 * default[0].numel()), rel=0.05)
        assert ours.std().item() == pytest.approx(other.std().item(), rel=0.05)


def test_resnet18_config_matches_authors_network() -> None:
    """torchvision's blocks behind a stem without ReLU and max-pool; Kaiming-normal by fan-out in every convolution."""
    torch.manual_seed(0)
    ours = instantiate(compose(["task=cifar10_resnet18"]).cfg.task.network)
    theirs = torchvision_resnet(ours)
    theirs.relu = nn.Identity()  # after the stem; blocks have their own ReLUs
    x = images()
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-4, atol=1e-5)
    with_relu = ResNet18(fan_out=True)
    with_relu.load_state_dict(ours.state_dict())
    assert not torch.allclose(ours(x), with_relu(x), rtol=0.05)
    convolutions = [module for module in ours.modules() if isinstance(module, nn.Conv2d)]
    assert len(convolutions) == 20
    for module in convolutions:
        fan_out = module.out_channels * module.kernel_size[0] * module.kernel_size[1]
        assert module.weight.std().item() == pytest.approx(math.sqrt(2 / fan_out), rel=0.05)
    bound = 1 / math.sqrt(ours.head.in_features)  # the classifier has torch's default initialisation
    assert 0.9 * bound < ours.head.weight.abs().max().item() <= bound


def test_width_scales_every_layer() -> None:
    torch.manual_seed(0)
    small = VGG11(classes=7, width=4, hidden=5)
    assert [m.out_channels for m in small.features if isinstance(m, nn.Conv2d)] == [4, 8, 16, 16, 32, 32, 32, 32]
    assert small(images()).shape == (4, 7)
    assert ResNet18(classes=3, width=2)(images()).shape == (4, 3)


def test_dropout_is_active_only_in_training() -> None:
    torch.manual_seed(0)
    network = VGG11(width=2, hidden=64, dropout=0.5)
    assert not torch.equal(network(images()), network(images()))
    network.eval()
    assert torch.equal(network(images()), network(images()))
