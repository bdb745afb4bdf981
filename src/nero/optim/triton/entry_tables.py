"""Tables of the optimisers whose kernels go through tensors entry by entry: LAMB and Madam."""

from typing import Any, ClassVar

import torch
from torch import Tensor

from nero.optim.sharding import local
from nero.optim.triton.pointer_tables import TensorList

# Columns of the table of tensors. AVERAGE and OTHER: addresses of what `keys` names; TILES: number of tiles, of which
# the first is FIRST_TILE among those of all tensors; ALIGNED: whether every address is a multiple of 16.
WEIGHT, AVERAGE, OTHER, STEP, COUNT, ALIGNED, FIRST_TILE, TILES = range(8)
COLUMNS = 8


class EntryTensors(TensorList):
    """Tensors of one dtype on one device, cut into tiles.

    keys:  the state that the kernels use, beside the step count
    tile:  entries per tile; warps: of its program
    """

    keys: ClassVar[tuple[str, str]]
    tile: ClassVar[int]
    warps: ClassVar[int]

    def __init__(self, params: list[Tensor], states: list[dict[str, Tensor]]) -> None:
        from triton import language as tl

        super().__init__(params, states)
        self.element: Any = getattr(tl, str(self.dtype).removeprefix("torch."))
        state = [
            [local(state[key]).data_ptr() if key in state else 0 for key in (*self.keys, "step")] for state in states
        ]
        pointers = torch.column_stack([torch.tensor(self.addresses), torch.tensor(state)])
        counts = torch.tensor([param.numel() for param in self.local_params()])
        aligned = (pointers[:, :3] % 16 == 0).all(1)
        tiles = -(-counts // self.tile)
        records = torch.column_stack([pointers, counts, aligned, tiles.cumsum(0) - tiles, tiles])
        assert records.shape[1] == COLUMNS
        self.tensors, self.tiles = records.to(self.device), tiles.tolist()
