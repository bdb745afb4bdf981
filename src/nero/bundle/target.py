"""The Python and the platform that a bundle is for, which need not be those of the machine that makes it."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from packaging import tags
from packaging.specifiers import SpecifierSet
from packaging.utils import parse_wheel_filename

from nero.bundle.refusal import Refusal

# Names that came before manylinux_<glibc>, which wheels still carry.
OLD_NAMES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
# The oldest glibc that wheels were ever made for.
OLDEST_GLIBC = {"x86_64": 5, "i686": 5}


@dataclass(frozen=True)
class Target:
    """python: "3.12"; platform: as wheels name it, such as manylinux_2_28_x86_64, by the glibc that is there."""

    python: str
    platform: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"3\.\d+", self.python):
            raise Refusal(f"{self.python!r} is no version of Python such as 3.12")
        if not self.platforms:
            raise Refusal(
                f"unknown platform {self.platform!r}: say, for instance, manylinux_2_28_x86_64,"
                " manylinux_2_28_aarch64, musllinux_1_2_x86_64, macosx_11_0_arm64 or win_amd64"
            )

    @property
    def platforms(self) -> list[str]:
        """All whose wheels run there, best first: pip takes --platform by the letter, and older ones are others."""
        new = {old: glibc for glibc, old in OLD_NAMES.items()}
        name, _, arch = self.platform.partition("_")
        if name in new:
            return _of_glibc(new[name], arch)
        if match := re.fullmatch(r"manylinux_2_(\d+)_(\w+)", self.platform):
            return _of_glibc(int(match[1]), match[2])
        if match := re.fullmatch(r"musllinux_1_(\d+)_(\w+)", self.platform):
            return [f"musllinux_1_{minor}_{match[2]}" for minor in range(int(match[1]), -1, -1)]
        if match := re.fullmatch(r"macosx_(\d+)_(\d+)_(arm64|x86_64)", self.platform):
            return list(tags.mac_platforms((int(match[1]), int(match[2])), match[3]))
        return [self.platform] if self.platform in WINDOWS else []

    @property
    def environment(self) -> dict[str, str]:
        """What environment markers are judged by there. pip judges them by the machine on which it runs."""
        where = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
        machine = re.sub(r"^(manylinux|musllinux)(_\d+_\d+|\d+)_", "", self.platform)
        if self.platform.startswith("macosx"):
            where |= {"sys_platform": "darwin", "platform_system": "Darwin"}
            machine = "arm64" if self.platform.endswith("arm64") else "x86_64"
        elif self.platform in WINDOWS:
            where = {"os_name": "nt", "sys_platform": "win32", "platform_system": "Windows"}
            machine = WINDOWS[self.platform]
        return where | {
            "platform_machine": machine,
            "platform_release": "",
            "platform_version": "",
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "implementation_version": f"{self.python}.0",
            "platform_python_implementation": "CPython",
        }

    def takes(self, wheel: str) -> bool:
        """Whether a wheel of this file name can be installed there."""
        version = tuple(map(int, self.python.split(".")))
        fitting = {
            *tags.cpython_tags(version, platforms=self.platforms),
            *tags.compatible_tags(version, f"cp{self.python.replace('.', '')}", self.platforms),
        }
        return not fitting.isdisjoint(parse_wheel_filename(wheel)[3])

    def require_python(self, wanted: str) -> None:
        """Refuse a Python that the project does not run on; `wanted` is as pyproject.toml says it, such as >=3.11."""
        if not SpecifierSet(wanted).contains(f"{self.python}.0"):
            raise Refusal(f"the project needs Python {wanted}, and the bundle would be for {self.python}")


WINDOWS = {"win_amd64": "AMD64", "win_arm64": "ARM64", "win32": "x86"}


def this_python() -> str:
    """Such as "3.12"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def this_platform() -> str:
    """As wheels name it; of the names of a Linux machine the one that says which C library it has."""
    names: Sequence[str] = list(tags.platform_tags())
    return next((name for name in names if not name.startswith("linux_")), names[0])


def _of_glibc(newest: int, arch: str) -> list[str]:
    found = []
    for glibc in range(newest, OLDEST_GLIBC.get(arch, 17) - 1, -1):
        found.append(f"manylinux_2_{glibc}_{arch}")
        if glibc in OLD_NAMES:
            found.append(f"{OLD_NAMES[glibc]}_{arch}")
    return [*found, f"linux_{arch}"] if found else []
