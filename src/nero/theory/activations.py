"""Section 3.1: a balanced linear neuron standardises, given uncorrelated inputs of one mean and of variance 1.

For y = Σ wᵢ xᵢ and uncorrelated inputs of mean μ and variance v:

    E[y] = μ Σ wᵢ         zero for a balanced neuron, whatever μ is
    Var[y] = v Σ wᵢ²      v for a balanced neuron

Inputs in a trained network are neither uncorrelated nor identically distributed, so a layer's outputs are measured and
compared with this prediction.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nero.theory.balance import quantiles

# Entries of a tensor that are converted to float64 at a time: 128 MiB, and as much again for their deviations.
_MOST_ENTRIES = 2**24


@dataclass(frozen=True)
class LayerActivations:
    """Outputs of one linear or convolutional layer, without its bias; `quantiles` are over neurons.

    input_mean, input_variance:          of each input feature (each channel, for a convolution) over examples and
                                         positions, averaged over features
    mean, variance:                      of each neuron's output over examples and positions (pixels, tokens)
    predicted_mean, predicted_variance:  the same for uncorrelated inputs that all have the input mean and variance,
                                         without the zero padding of a convolution
    """

    name: str
    input_mean: float
    input_variance: float
    mean: dict[str, float]
    variance: dict[str, float]
    predicted_mean: dict[str, float]
    predicted_variance: dict[str, float]

    def record(self) -> dict[str, Any]:
        return asdict(self)


def predicted_moments(weight: Tensor, mean: float, variance: float) -> tuple[Tensor, Tensor]:
    """Mean and variance of each neuron's output for uncorrelated inputs that all have this mean and variance."""
    rows = weight.detach().to(torch.float64).flatten(1)
    return mean * rows.sum(-1), variance * rows.square().sum(-1)


@torch.no_grad()
def measure_activations(network: nn.Module, batches: Iterable[Tensor]) -> list[LayerActivations]:
    """Measure every nn.Linear and nn.Conv2d that the network calls, in evaluation mode, over all batches.

    Layers are in the order of the network's modules. A layer that is called several times, in one pass or under several
    names, is measured over all of its calls. Batches are on the network's device; each is used once and not stored.
    """
    layers = {name: module for name, module in network.named_modules() if isinstance(module, nn.Linear | nn.Conv2d)}
    seen = {name: (_Moments(), _Moments()) for name in layers}
    with _evaluating(network), _hooked(layers, seen):
        for batch in batches:
            network(batch)
    return [_measured(name, layers[name], *seen[name]) for name in layers if seen[name][0].count]


class _Moments:
    """Means and variances of features, updated part by part (Chan, Golub and LeVeque, 1979).

    Only deviations from a mean are squared: E[x²] - E[x]² would lose a variance that is small relative to the mean's
    square.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = torch.zeros(())
        self._deviations = torch.zeros(())  # sum of squared deviations from the mean

    def add(self, values: Tensor, feature_dim: int) -> None:
        """Add values with features along `feature_dim`, counted from the end; all other dims are positions."""
        if values.numel() == 0:
            return
        if values.ndim == -feature_dim:
            values = values.unsqueeze(0)  # a single example
        examples = max(1, _MOST_ENTRIES // values[0].numel())
        for part in values.detach().split(examples):
            self._add(part.to(torch.float64), feature_dim)

    def _add(self, part: Tensor, feature_dim: int) -> None:
        over = [dim for dim in range(part.ndim) if dim != part.ndim + feature_dim]
        count = part.numel() // part.shape[feature_dim]
        mean = part.mean(over, keepdim=True)
        deviations = (part - mean).square_().sum(over)
        mean = mean.flatten()
        if self.count:
            total = self.count + count
            apart = mean - self.mean
            mean = self.mean + apart * (count / total)
            deviations += self._deviations + apart.square() * (self.count * count / total)
        self.count, self.mean, self._deviations = self.count + count, mean, deviations

    @property
    def variance(self) -> Tensor:
        """Population variance (ddof 0)."""
        return self._deviations / self.count


def _measured(name: str, layer: nn.Linear | nn.Conv2d, inputs: _Moments, outputs: _Moments) -> LayerActivations:
    of_inputs = inputs.mean.mean().item(), inputs.variance.mean().item()
    # The outputs include the bias, which shifts their mean and nothing else.
    mean = outputs.mean if layer.bias is None else outputs.mean - layer.bias.to(torch.float64)
    moments = (mean, outputs.variance, *predicted_moments(layer.weight, *of_inputs))
    return LayerActivations(name, *of_inputs, *map(quantiles, moments))


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Put the network in evaluation mode; restore the mode of each of its modules afterwards."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def _hooked(layers: dict[str, nn.Linear | nn.Conv2d], seen: dict[str, tuple[_Moments, _Moments]]) -> Iterator[None]:
    """Add the inputs and outputs of each layer to its moments at every call: they may be overwritten later."""

    def register(name: str, layer: nn.Linear | nn.Conv2d) -> torch.utils.hooks.RemovableHandle:
        inputs, outputs = seen[name]
        feature_dim = -1 if isinstance(layer, nn.Linear) else -3

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            inputs.add(args[0] if args else kwargs["input"], feature_dim)
            outputs.add(output, feature_dim)

        # Before any other hook, which may replace the output.
        return layer.register_forward_hook(hook, prepend=True, with_kwargs=True)

    handles = [register(name, layer) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
