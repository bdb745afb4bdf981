#!/usr/bin/env python3
"""Draw images with a trained generator, and measure their FID.

    python scripts/sample.py RUN
    python scripts/sample.py RUN --out frogs.png --classes 6 --rows 10 --columns 10 --scale 4 --seed 1
    python scripts/sample.py RUN --fid                 from the training and the test images; minutes without a GPU

RUN is the directory of a run that kept its checkpoint, or its id. The picture has a row for each draw of z and a column
for each class, in order of their numbers; with --columns, so many columns for all classes in turn. The suffix of --out
says the format. FID is of as many samples as there are test images, with their labels: plain, and as the code that the
authors released measures it. On a CPU the same seed gives the same images.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from nero.checkpoints.loading import Trained, Unusable, load_trained
from nero.checkpoints.options import run_parser
from nero.models.biggan import Z
from nero.plans.argparse_types import check_out, whole
from nero.tasks.cgan import ConditionalGAN
from nero.tasks.fid_of_images import NoJudge
from nero.tasks.sample_grid import grid, to_image


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.out.suffix.lower() not in Image.registered_extensions():
        parser.error(f"--out: {options.out.name} has no suffix of a picture, such as .png or .jpg")
    check_out(parser, options.out)
    try:
        trained = load_trained(options.run, options.store, ConditionalGAN, options.data_root, options.device)
        print(trained.describe(), file=sys.stderr)
        _picture(trained, options).save(options.out)
        print(options.out)
        if options.fid:
            for name, value in _distances(trained, options).items():
                print(f"{name} {value:.4f}")
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _picture(trained: Trained[ConditionalGAN], options: argparse.Namespace) -> Image.Image:
    task = trained.task
    there = int(task.labels.max()) + 1
    classes = torch.tensor(options.classes if options.classes is not None else range(there))
    if int(classes.max()) >= there:
        raise Unusable(f"--classes: there are the classes 0 to {there - 1}, not {int(classes.max())}")
    columns = options.columns or len(classes)
    labels = classes.repeat(-(-columns // len(classes)))[:columns].repeat(options.rows)
    images = torch.cat([part.cpu() for part in _samples(trained, labels, options.seed)])
    picture = to_image(grid(images, options.rows))
    return picture.resize((picture.width * options.scale, picture.height * options.scale), Image.Resampling.NEAREST)


def _distances(trained: Trained[ConditionalGAN], options: argparse.Namespace) -> dict[str, float]:
    task = trained.task
    if any(isinstance(judge, NoJudge) for judge in task.judges.values()):
        raise Unusable("; ".join(task.remarks))
    samples = _samples(trained, task.labels, options.seed)
    return {name: value for judge in task.judges.values() for name, value in judge.distances(samples).items()}


def _samples(trained: Trained[ConditionalGAN], labels: Tensor, seed: int) -> list[Tensor]:
    """uint8 images for class numbers, in batches."""
    task = trained.task
    z = torch.randn(len(labels), Z, generator=torch.Generator().manual_seed(seed))
    with trained.arithmetic():
        return list(task.samples(z, labels.to(task.device)))


def _parser() -> argparse.ArgumentParser:
    parser = run_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("samples.png"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--classes", type=whole(0), nargs="+", metavar="N", help="numbers of classes (default: all)")
    parser.add_argument("--rows", type=whole(1), default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--columns", type=whole(1), metavar="N", help="default: one for each class")
    parser.add_argument("--scale", type=whole(1), default=1, metavar="N", help="enlarge by (default: %(default)s)")
    parser.add_argument("--seed", type=whole(0), default=0, metavar="N", help="of z (default: %(default)s)")
    parser.add_argument("--fid", action="store_true", help="measure FID")
    return parser


if __name__ == "__main__":
    sys.exit(main())
