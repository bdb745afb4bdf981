"""What tells one start of a machine from every other, of this machine or of another."""

from pathlib import Path

BOOT = Path("/proc/sys/kernel/random/boot_id")


def boot_id() -> str | None:
    """None where there is no such thing."""
    try:
        return BOOT.read_text().strip() or None
    except OSError:
        return None
