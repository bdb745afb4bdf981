"""Nero, the neuronal rotator, and the experiment suite of "Learning by Turning" (ICML 2021).

The optimisers are imported on first use, so that the report, which needs no torch, starts without it.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nero.optim import LAMB, Madam, Nero, param_groups

__version__ = "0.2.0"
__all__ = ["LAMB", "Madam", "Nero", "__version__", "param_groups"]


def __getattr__(name: str) -> Any:
    if name in {"LAMB", "Madam", "Nero", "param_groups"}:
        from nero import optim

        return getattr(optim, name)
    raise AttributeError(f"module 'nero' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
