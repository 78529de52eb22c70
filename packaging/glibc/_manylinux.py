"""Keeps pip to wheels for glibc 2.28, that of RHEL 8, whatever the container of the build has.

The wheels of the .rpm are chosen in a container of Debian. pip reads this module: PEP 600,
"Package Installers".
"""


def manylinux_compatible(tag_major: int, tag_minor: int, tag_arch: str) -> bool:
    """Return whether a wheel for this glibc may be installed."""
    del tag_arch
    return (tag_major, tag_minor) <= (2, 28)
