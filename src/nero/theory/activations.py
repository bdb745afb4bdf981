"""Section 3.1: a balanced linear neuron standardises, given uncorrelated inputs of one mean and of variance 1.

For y = Σ wᵢ xᵢ and uncorrelated inputs of mean μ and variance v:

    E[y] = μ Σ wᵢ         zero for a balanced neuron, whatever μ is
    Var[y] = v Σ wᵢ²      v for a balanced neuron

Inputs in a trained network are neither uncorrelated nor identically distributed, so a layer's outputs are measured and
compared with this prediction.
"""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from nero.theory.balance import quantiles

# Entries of a tensor that are converted to float64 at a time: 128 MiB, and as much again for their deviations.
_MOST_ENTRIES = 2**24


@dataclass(frozen=True)
class LayerActivations:
    """Outputs of one linear or convolutional layer, without its bias; `quantiles` are over neurons.

    Attributes:
        input_mean: of each input feature (each channel, for a convolution) over examples and positions, averaged over
            features
        input_variance: likewise
        mean: of each neuron's output over examples and positions (pixels, tokens)
        variance: likewise
        predicted_mean: the same for uncorrelated inputs that all have the input mean and variance, without the zero
            padding of a convolution
        predicted_variance: likewise
    """

    name: str
    input_mean: float
    input_variance: float
    mean: dict[str, float]
    variance: dict[str, float]
    predicted_mean: dict[str, float]
    predicted_variance: dict[str, float]


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
    with ExitStack() as stack:
        for module in network.modules():
            stack.callback(setattr, module, "training", module.training)
        for name, layer in layers.items():
            # Before any other hook, which may replace the output.
            hook = partial(_add_call, *seen[name])
            stack.enter_context(layer.register_forward_hook(hook, prepend=True, with_kwargs=True))
        network.eval()
        for batch in batches:
            network(batch)
    return [_measured(name, layers[name], *moments) for name, moments in seen.items() if moments[0].count]


class _Moments:
    """Means and variances of features, updated part by part (Chan, Golub and LeVeque, 1979).

    Only deviations from a mean are squared: E[x²] - E[x]² would lose a variance that is small relative to the mean's
    square.
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.deviations = torch.zeros(())  # deviations: the sum of their squares

    def add(self, values: Tensor, feature_dim: int) -> None:
        """Add values with features along `feature_dim`; all other dims are positions."""
        if values.numel() == 0:
            return
        rows = values.detach().movedim(feature_dim, -1).reshape(-1, values.shape[feature_dim])
        for part in rows.split(max(1, _MOST_ENTRIES // rows.shape[1])):
            variance, mean = torch.var_mean(part.to(torch.float64), 0, correction=0)
            total, apart = self.count + len(part), mean - self.mean
            self.deviations = self.deviations + len(part) * (variance + apart.square() * (self.count / total))
            self.mean = self.mean + apart * (len(part) / total)
            self.count = total

    @property
    def variance(self) -> Tensor:
        """Population variance (ddof 0)."""
        return self.deviations / self.count


def _add_call(
    inputs: _Moments, outputs: _Moments, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor
) -> None:
    """Forward hook: add a call's input and output, either of which may be overwritten later."""
    feature_dim = -1 if isinstance(layer, nn.Linear) else -3
    inputs.add(args[0] if args else kwargs["input"], feature_dim)
    outputs.add(output, feature_dim)


def _measured(name: str, layer: nn.Linear | nn.Conv2d, inputs: _Moments, outputs: _Moments) -> LayerActivations:
    of_inputs = inputs.mean.mean().item(), inputs.variance.mean().item()
    # The outputs include the bias, which shifts their mean and nothing else.
    mean = outputs.mean if layer.bias is None else outputs.mean - layer.bias.to(torch.float64)
    moments = (mean, outputs.variance, *predicted_moments(layer.weight, *of_inputs))
    return LayerActivations(name, *of_inputs, *map(quantiles, moments))
