"""Draw images with a trained generator, and measure their FID.

    python scripts/sample.py RUN
    python scripts/sample.py RUN --out frogs.png --classes 6 --rows 10 --columns 10 --scale 4 --seed 1
    python scripts/sample.py RUN --fid                 from the training and the test images; minutes without a GPU

RUN is the directory or the id of a run that kept its checkpoint. The picture has a row per draw of z and a column per
class, in order of class number; with --columns, that many columns that repeat the classes. The suffix of --out decides
the format. FID is measured with as many samples as there are test images, with their labels: plain, and as the authors'
released code measures it. On a CPU the same seed gives the same images.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from nero.checkpoints.loading import Trained, Unusable, run_command, run_parser
from nero.models.biggan import Z
from nero.plans.argparse_types import check_out, non_negative_int, positive_int
from nero.tasks.cgan import ConditionalGAN, grid, to_image


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.out.suffix.lower() not in Image.registered_extensions():
        parser.error(f"--out: {options.out.name} does not end with the suffix of an image format, such as .png or .jpg")
    check_out(parser, options.out)
    return run_command(options, ConditionalGAN, _sample)


def _sample(trained: Trained[ConditionalGAN], options: argparse.Namespace) -> None:
    _picture(trained, options).save(options.out)
    print(options.out)
    if not options.fid:
        return
    task = trained.task
    if any(judge.network is None for judge in task.judges.values()):
        raise Unusable("; ".join(task.remarks))
    samples = _samples(trained, task.labels, options.seed)
    for judge in task.judges.values():
        for name, value in judge.distances(samples).items():
            print(f"{name} {value:.4f}")


def _picture(trained: Trained[ConditionalGAN], options: argparse.Namespace) -> Image.Image:
    count = int(trained.task.labels.max()) + 1
    classes = torch.tensor(options.classes if options.classes is not None else range(count))
    if int(classes.max()) >= count:
        raise Unusable(f"--classes must be from 0 to {count - 1}, not {int(classes.max())}")
    columns = options.columns or len(classes)
    labels = classes.repeat(-(-columns // len(classes)))[:columns].repeat(options.rows)
    images = torch.cat([part.cpu() for part in _samples(trained, labels, options.seed)])
    picture = to_image(grid(images, options.rows))
    return picture.resize((picture.width * options.scale, picture.height * options.scale), Image.Resampling.NEAREST)


def _samples(trained: Trained[ConditionalGAN], labels: Tensor, seed: int) -> list[Tensor]:
    """uint8 images of these classes, in batches."""
    z = torch.randn(len(labels), Z, generator=torch.Generator().manual_seed(seed))
    with trained.autocast():
        return list(trained.task.samples(z, labels.to(trained.task.device)))


def _parser() -> argparse.ArgumentParser:
    parser = run_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("samples.png"), metavar="FILE", help="default: %(default)s")
    parser.add_argument("--classes", type=non_negative_int, nargs="+", metavar="N", help="class numbers (default: all)")
    parser.add_argument("--rows", type=positive_int, default=8, metavar="N", help="default: %(default)s")
    parser.add_argument("--columns", type=positive_int, metavar="N", help="default: one per class")
    parser.add_argument("--scale", type=positive_int, default=1, metavar="N", help="enlarge by (default: %(default)s)")
    parser.add_argument("--seed", type=non_negative_int, default=0, metavar="N", help="of z (default: %(default)s)")
    parser.add_argument("--fid", action="store_true", help="measure FID")
    return parser
