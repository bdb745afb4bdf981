"""Data of the next epoch, made while the device is still at work on this one."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class MadeAhead(Generic[T]):
    """What `make(epoch)` gives, for epochs that mostly come one after the other.

    When the host has asked for all batches of an epoch, a GPU has yet to compute the last of them: what the host does
    then costs no time. `len` is how many epochs' data are waiting.
    """

    def __init__(self, make: Callable[[int], T], epochs: int) -> None:
        self.make, self.epochs = make, epochs
        self._made: dict[int, T] = {}

    def take(self, epoch: int) -> T:
        """Made before, or now."""
        return self._made.pop(epoch) if epoch in self._made else self.make(epoch)

    def prepare_after(self, epoch: int) -> None:
        """Make what follows an epoch, if anything does; nothing else is kept."""
        self._made.clear()
        if epoch + 1 < self.epochs:
            self._made[epoch + 1] = self.make(epoch + 1)

    def __len__(self) -> int:
        return len(self._made)
