"""The layers of an image put on top of each other, without unpacking one of their files.

What a layer says is not trusted: its paths only ever become names in a tree here, and then in a
squashfs file, so nothing of it can reach a path of this machine. Whiteouts are those of the OCI
image specification (layer.md): `.wh.NAME` hides a name of the layers below, `.wh..wh..opq` all
that a folder held there.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import IO, cast

from slurmkit.errors import ImageError

_HIDES = ".wh."
_HIDES_ALL = ".wh..wh..opq"
_HOPS = 40  # links followed in one path, as Linux does
_Path = tuple[str, ...]


class Node:
    """One name of the tree: what it is, where its bytes are, and what is in it.

    Attributes:
        member: None for a folder that no layer names, but as part of a path.
        layer: the archive that the bytes of `member` are in.
        text: the bytes of a file of ours.
    """

    __slots__ = ("children", "layer", "member", "text")

    def __init__(
        self,
        member: tarfile.TarInfo | None = None,
        layer: tarfile.TarFile | None = None,
        text: bytes | None = None,
    ) -> None:
        self.member = member
        self.layer = layer
        self.text = text
        self.children: dict[str, Node] = {}

    @property
    def is_folder(self) -> bool:
        """Whether something can be in it."""
        return self.member is None or self.member.isdir()

    def outgoing(self, path: str) -> tuple[tarfile.TarInfo, IO[bytes] | None]:
        """As it is written: under its place in the tree, and root's."""
        made = tarfile.TarInfo(path)
        if self.member is None:
            made.type, made.mode = tarfile.DIRTYPE, 0o755
            return made, None
        # What its owner cannot read or enter could neither be unpacked for them nor be removed.
        least = 0o700 if self.member.isdir() else 0o600
        made.mode, made.mtime = self.member.mode & 0o7777 | least, _seconds(self.member.mtime)
        if not self.member.isreg():
            made.type, made.linkname = self.member.type, self.member.linkname
            return made, None
        made.size = self.member.size
        if self.text is not None or self.layer is None:
            return made, BytesIO(self.text or b"")
        return made, self.layer.extractfile(self.member)


class Tree:
    """The files of an image; layers are added from the lowest up."""

    def __init__(self) -> None:
        self._root = Node()

    def add(self, layer: tarfile.TarFile) -> None:
        """Put a layer on top. Devices are left out: runtimes have their own.

        Raises:
            ImageError: for a path with `..` in it, or a hard link to what is not there.
            tarfile.TarError: when it is damaged.
        """
        members = {_parts(member.name): member for member in layer}
        for parts in members:  # what hides means the layers below, wherever it stands
            if parts and parts[-1].startswith(_HIDES):
                self._hide(parts)
        for parts, member in members.items():
            if parts and not parts[-1].startswith(_HIDES):
                meant = _meant(member, members)
                if meant.isreg() or meant.isdir() or meant.issym() or meant.isfifo():
                    self._put(parts, Node(meant, layer))

    def put_text(self, path: str, text: str, mode: int = 0o644) -> None:
        """Put a file of ours on top, e.g. `etc/environment`."""
        data = text.encode("utf-8", "surrogateescape")
        member = tarfile.TarInfo(path)
        member.size, member.mode = len(data), mode
        self._put(_parts(path), Node(member, text=data))

    def put_folder(self, path: str) -> None:
        """Have a folder there."""
        self._folder(_parts(path))

    @property
    def size(self) -> int:
        """Bytes of all files."""
        nodes = (node for _, node in self.walk())
        return sum(n.member.size for n in nodes if n.member is not None and n.member.isreg())

    def walk(self) -> Iterator[tuple[str, Node]]:
        """Every path and what is there, folders before what is in them."""
        stack = [("", self._root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node
            inside = sorted(node.children.items(), reverse=True)
            stack += ((f"{path}/{name}" if path else name, child) for name, child in inside)

    def write(self, out: IO[bytes], report: Callable[[int], None]) -> None:
        """Write all of it as one tar archive, hard links as files: squashfs keeps doubles once.

        Args:
            out: where to.
            report: told of each piece how many bytes it has.

        Raises:
            tarfile.TarError: when a layer is damaged.
        """
        with tarfile.open(
            fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, errors="surrogateescape"
        ) as archive:
            for path, node in self.walk():
                made, data = node.outgoing(path)
                counted = None if data is None else cast("IO[bytes]", _Counted(data, report))
                archive.addfile(made, counted)

    def _hide(self, parts: _Path) -> None:
        folder = self._walk_to(parts[:-1], make=False)
        if folder is None:
            return
        if parts[-1] == _HIDES_ALL:
            folder.children.clear()
        else:
            folder.children.pop(parts[-1].removeprefix(_HIDES), None)

    def _put(self, parts: _Path, node: Node) -> None:
        folder = self._folder(parts[:-1])
        before = folder.children.get(parts[-1])
        if before is not None and before.is_folder and node.is_folder:
            node.children = before.children
        folder.children[parts[-1]] = node

    def _folder(self, parts: _Path) -> Node:
        found = self._walk_to(parts, make=True)
        if found is None:
            raise ImageError(f"the image has a path through too many links, {'/'.join(parts)!r}")
        return found

    def _walk_to(self, parts: _Path, *, make: bool) -> Node | None:
        """The folder of a path, made where it is not there; links are followed within the tree."""
        left, done, hops = list(reversed(parts)), [self._root], 0
        while left:
            name = left.pop()
            if name == "..":  # of a link; above the root is the root
                done = done[:-1] or done[:1]
                continue
            child = done[-1].children.get(name)
            if child is not None and child.member is not None and child.member.issym():
                hops += 1
                if hops > _HOPS:
                    return None
                done = done[:1] if child.member.linkname.startswith("/") else done
                left += reversed(_split(child.member.linkname))
                continue
            if child is None or not child.is_folder:
                if not make:
                    return None
                child = done[-1].children[name] = Node()
            done.append(child)
        return done[-1]


class _Counted:
    """A file that tells how much of it was read."""

    def __init__(self, data: IO[bytes], report: Callable[[int], None]) -> None:
        self._data, self._report = data, report

    def read(self, size: int = -1) -> bytes:
        piece = self._data.read(size)
        self._report(len(piece))
        return piece


def _seconds(time: float) -> int:
    """A time as squashfs can have it; an archive may say inf, or none at all."""
    return int(time) if 0 <= time < 1 << 32 else 0


def _split(path: str) -> _Path:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _parts(path: str) -> _Path:
    parts = _split(path)
    if ".." in parts:
        raise ImageError(f"the image has a path with .. in it, {path!r}: it is not imported")
    return parts


def _meant(member: tarfile.TarInfo, members: dict[_Path, tarfile.TarInfo]) -> tarfile.TarInfo:
    """What a hard link is, which is another name of something in the same layer."""
    found: tarfile.TarInfo | None = member
    for _ in range(_HOPS):
        if found is None or not found.islnk():
            break
        found = members.get(_parts(found.linkname))
    if found is None or found.islnk():
        raise ImageError(
            f"the image is damaged: {member.name!r} is a hard link to {member.linkname!r}, which"
            " is not there"
        )
    return found
