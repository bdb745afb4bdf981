"""Draw images with a trained generator, and measure their FID.

    nero sample RUN
    nero sample RUN --out frogs.png --classes 6 --rows 10 --columns 10 --scale 4 --seed 1
    nero sample RUN --fid                 from the training and the test images; minutes without a GPU

RUN is the directory, the id or the hash of a run; --retrain trains it again if it has no checkpoint. The picture has a
row per draw of z and a column per class, in order of class number; with --columns, that many columns that repeat the
classes. The suffix of --out decides the format. FID is measured with as many samples as there are test images, with
their labels: plain, and as the authors' released code measures it. On a CPU the same seed gives the same images.
"""

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from nero.checkpoints.loading import Trained, Unusable, parse, run_command, run_parser
from nero.models.biggan import Z
from nero.plans.argparse_types import check_out, non_negative_int, positive_int
from nero.tasks.cgan import ConditionalGAN, grid, to_image


def main(arguments: Sequence[str] | None = None) -> int:
    parser = run_parser("sample", __doc__)
    number = partial(parser.add_argument, metavar="N")
    parser.add_argument("--out", type=Path, default=Path("samples.png"), metavar="FILE", help="default: %(default)s")
    number("--classes", type=non_negative_int, nargs="+", help="class numbers (default: all)")
    number("--rows", type=positive_int, default=8, help="default: %(default)s")
    number("--columns", type=positive_int, help="default: one per class")
    number("--scale", type=positive_int, default=1, help="enlarge by (default: %(default)s)")
    number("--seed", type=non_negative_int, default=0, help="of z (default: %(default)s)")
    parser.add_argument("--fid", action="store_true", help="measure FID")
    options = parse(parser, arguments)
    if options.out.suffix.lower() not in Image.registered_extensions():
        parser.error(f"--out: {options.out.name} does not end with the suffix of an image format, such as .png or .jpg")
    check_out(parser, options.out)
    return run_command(options, ConditionalGAN, _sample)


def _sample(trained: Trained[ConditionalGAN], options: argparse.Namespace) -> None:
    task = trained.task

    def samples(labels: Tensor) -> list[Tensor]:
        """uint8 images of these classes, in batches."""
        z = torch.randn(len(labels), Z, generator=torch.Generator().manual_seed(options.seed))
        with trained.autocast():
            return list(task.samples(z, labels.to(task.device)))

    count = int(task.labels.max()) + 1
    classes = torch.tensor(options.classes if options.classes is not None else range(count))
    if int(classes.max()) >= count:
        raise Unusable(f"--classes must be from 0 to {count - 1}, not {int(classes.max())}")
    columns = options.columns or len(classes)
    labels = classes.repeat(-(-columns // len(classes)))[:columns].repeat(options.rows)
    picture = to_image(grid(torch.cat([part.cpu() for part in samples(labels)]), options.rows))
    size = picture.width * options.scale, picture.height * options.scale
    picture.resize(size, Image.Resampling.NEAREST).save(options.out)
    print(options.out)
    if not options.fid:
        return
    if any(judge.network is None for judge in task.judges.values()):
        raise Unusable("; ".join(task.remarks))
    judged = samples(task.labels)
    for judge in task.judges.values():
        for name, value in judge.distances(judged).items():
            print(f"{name} {value:.4f}")
