"""Turning neurons, that is rows of weights, on the spheres that they lie on (Section 8).

A neuron keeps its norm. Where it is balanced it keeps its mean of zero as well, and so turns on a sphere of one dim
less: `centred` says so. Rows are [neurons, fan_in]; angles are in radians, one for all rows or one for each. A row of
zeros, or one whose sphere has no room to turn (two points are left of a centred pair of weights), stays as it is.
"""

import math

import numpy as np
import torch
from torch import Tensor


def sphere_dim(fan_in: int, centred: bool) -> int:
    """Of the sphere that a neuron of this fan-in turns on; S^(d-2) for a balanced one (Section 8)."""
    return max(fan_in - (2 if centred else 1), 0)


def tangent(rows: Tensor, vectors: Tensor, centred: bool) -> Tensor:
    """The part of each vector along which its row can turn: what neither changes the norm nor, if centred, the mean."""
    if centred:
        vectors = vectors - vectors.mean(-1, keepdim=True)
    square = rows.square().sum(-1, keepdim=True)
    along = (vectors * rows).sum(-1, keepdim=True) / torch.where(square == 0, 1, square)
    return vectors - along * rows


def turn(rows: Tensor, directions: Tensor, angle: Tensor | float) -> Tensor:
    """Each row turned by an angle towards its direction, a tangent vector of any length."""
    angle = torch.as_tensor(angle, dtype=rows.dtype, device=rows.device)
    angle = angle.reshape(-1, 1) if angle.ndim else angle
    length = directions.norm(dim=-1, keepdim=True)
    size = rows.norm(dim=-1, keepdim=True)
    moves = (length > 0) & (size > 0)
    turned = angle.cos() * rows + angle.sin() * size * (directions / torch.where(moves, length, 1))
    return torch.where(moves, turned, rows)


def clip_to_cap(rows: Tensor, centres: Tensor, angle: float, centred: bool) -> Tensor:
    """The nearest rows within an angle of their centres, which have the same norms."""
    # By the chord, of which all digits are known however short it is: rows themselves are nearly the centres.
    chord = rows - centres
    within = chord.norm(dim=-1, keepdim=True) <= 2 * math.sin(angle / 2) * centres.norm(dim=-1, keepdim=True)
    return torch.where(within, rows, turn(centres, tangent(centres, chord, centred), angle))


def turn_at_random(
    rows: Tensor, angle: float, centred: bool, angles: np.random.Generator, directions: torch.Generator
) -> Tensor:
    """Each row drawn uniformly from the cap of that angle around it."""
    dim = sphere_dim(rows.shape[1], centred)
    if dim == 0 or angle == 0:
        return rows
    drawn = torch.randn(rows.shape, dtype=rows.dtype, device=rows.device, generator=directions)
    by = torch.from_numpy(draw_angles(angle, dim, len(rows), angles)).to(rows)
    return turn(rows, tangent(rows, drawn, centred), by)


def draw_angles(angle: float, dim: int, count: int, generator: np.random.Generator) -> np.ndarray:
    """How far from the centre points lie that are uniform on a cap of S^dim: on [0, angle], density sin^(dim-1).

    By rejection, so that it is exact in any dim: in high ones nearly all points lie near the border of the cap.
    """
    if not 0 < angle <= math.pi or dim < 1:
        raise ValueError(f"a cap has an angle in (0, pi] and a sphere of dim 1 or more, not {angle} and {dim}")
    drawn = np.empty(0)
    while len(drawn) < count:
        more = 2 * (count - len(drawn)) + 16
        if angle < math.pi / 2 and math.cos(angle) * math.sqrt(dim) > 1:
            # The sine has density s^(dim-1) / sqrt(1 - s^2): drawn by its first factor, accepted by the second.
            sine = math.sin(angle) * generator.random(more) ** (1 / dim)
            kept = generator.random(more) * np.sqrt(1 - sine**2) <= math.cos(angle)
            angles = np.arcsin(sine)
        else:
            # A cap that is no small part of the sphere: points of the whole sphere, of which those outside are dropped.
            angles = np.arctan2(np.sqrt(generator.chisquare(dim, more)), generator.standard_normal(more))
            kept = angles <= angle
        drawn = np.concatenate([drawn, angles[kept]])
    return drawn[:count]
