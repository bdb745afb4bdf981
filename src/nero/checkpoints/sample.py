"""Draw images with a trained generator, and measure their FID."""

import argparse

import torch
from PIL import Image
from torch import Tensor

from nero.checkpoints.loading import Trained, run_command
from nero.checkpoints.options import Unusable
from nero.models.biggan import Z
from nero.tasks.cgan import ConditionalGAN, grid, to_image


def run(options: argparse.Namespace) -> int:
    """The command, with the options of `nero.cli.trained`; gives its exit status."""
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
