"""JPEG files to a batch of equally large images on a device by NVIDIA DALI, where that is installed.

What goes in and what comes out is that of `gpu_decoding`. Pixels differ by rounding, by what decoders make of colours
of half the resolution, and along the edges of a window: where a filter reaches beyond, torch takes only the pixels that
there are, and DALI repeats the last one.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nero.data.images.gpu_decoding import decode_and_crop


class DaliDecoder:
    """Decodes, crops and resizes batches of up to `batch` files to `size` x `size` pixels on the device.

    threads: of the CPU, for what a GPU's decoding engine leaves to it

    ImportError in one line where DALI is missing.
    """

    def __init__(self, size: int, device: torch.device, batch: int, threads: int = 4) -> None:
        try:
            import nvidia.dali  # noqa: F401
        except ImportError as error:
            packages = "nvidia-dali-cuda120, or nvidia-dali-cuda130 for CUDA 13"
            raise ImportError(f"decoding by DALI needs its package: pip install {packages} ({error})") from error
        self.size, self.device, self.batch, self.threads = size, device, batch, threads
        self._pipeline: Any = None

    def __call__(self, encoded: Sequence[Tensor], windows: Tensor) -> tuple[Tensor, dict[int, str]]:
        """As `gpu_decoding.decode_and_crop`, which does it for a batch in which DALI cannot take one file.

        On a GPU the host waits until the result is there.
        """
        if len(encoded) > self.batch:
            raise ValueError(f"a batch of {len(encoded)} is larger than {self.batch}")
        files = [place for place, entry in enumerate(encoded) if entry.dim() == 1]
        others = [place for place, entry in enumerate(encoded) if entry.dim() != 1]
        pixels: Tensor | str = "no files"
        if files and windows.shape == (len(encoded), 4) and bool((windows[:, 2:] > 0).all() & (windows >= 0).all()):
            pixels = self._run([encoded[place] for place in files], windows[files])
        if isinstance(pixels, str):
            result, failures = decode_and_crop(encoded, windows, self.size, self.device)
            if files and not failures:
                warnings.warn(f"DALI does not take what others do: {pixels}", stacklevel=2)
            return result, failures
        if not others:
            return pixels, {}
        rest, failures = decode_and_crop([encoded[place] for place in others], windows[others], self.size, self.device)
        result = _empty(len(encoded), self.size, self.device)
        result[files], result[others] = pixels, rest
        return result, {others[place]: reason for place, reason in failures.items()}

    def _run(self, files: list[Tensor], windows: Tensor) -> Tensor | str:
        """What comes out of the pipeline, or why nothing does."""
        from nvidia.dali.plugin.pytorch import feed_ndarray

        result = _empty(len(files), self.size, self.device)
        stream = torch.cuda.current_stream(self.device) if self.device.type == "cuda" else None
        corners, sizes = windows.int().numpy().reshape(-1, 2, 2).transpose(1, 0, 2).copy()
        try:
            if self._pipeline is None:
                self._pipeline = self._build()
            (output,) = self._pipeline.run(files=[file.numpy() for file in files], corners=corners, sizes=sizes)
            feed_ndarray(output.as_tensor(), result.permute(0, 2, 3, 1), cuda_stream=stream)
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            self._pipeline = None  # whether it can go on after a failure depends on what failed
            return (str(error).strip().splitlines() or ["unknown reason"])[0]
        if stream is not None:
            stream.synchronize()  # the pipeline's memory is its own again when it runs next
        return result

    def _build(self) -> Any:
        from nvidia.dali import Pipeline, fn, types

        on_gpu = self.device.type == "cuda"
        index = torch.cuda.current_device() if on_gpu and self.device.index is None else self.device.index
        pipeline = Pipeline(
            batch_size=self.batch,
            num_threads=self.threads,
            device_id=index if on_gpu else None,
            prefetch_queue_depth=1,  # a batch is there when it is asked for
        )
        with pipeline:
            files = fn.external_source(name="files", dtype=types.UINT8, ndim=1, batch=True)
            corners = fn.external_source(name="corners", dtype=types.INT32, ndim=1, batch=True)
            sizes = fn.external_source(name="sizes", dtype=types.INT32, ndim=1, batch=True)
            # Windows were drawn for images as they are stored, not as a camera was held.
            images = fn.decoders.image(
                files, device="mixed" if on_gpu else "cpu", output_type=types.RGB, adjust_orientation=False
            )
            crops = fn.slice(images, start=corners, shape=sizes, axes=(0, 1), out_of_bounds_policy="error")
            resized = fn.resize(crops, size=(self.size, self.size), interp_type=types.INTERP_LINEAR, antialias=True)
            pipeline.set_outputs(resized)
        pipeline.build()
        return pipeline


def _empty(count: int, size: int, device: torch.device) -> Tensor:
    """uint8 [count, 3, size, size] in channels_last format."""
    return torch.empty(count, size, size, 3, dtype=torch.uint8, device=device).permute(0, 3, 1, 2)
