"""Stack the layers of an image into one tree, without unpacking their files.

Layers are not trusted: their paths only become names in a tree in memory, and then in a squashfs
file, so no path of this machine is ever written. Whiteouts are those of the OCI image
specification (layer.md): `.wh.NAME` hides a name of the layers below, `.wh..wh..opq` hides
everything that the folder has in them.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import IO, cast

from slurmkit.errors import ImageError

_HIDES = ".wh."
_HIDES_ALL = ".wh..wh..opq"
_MAX_LINKS = 40  # links followed in one path; Linux has the same limit
_Path = tuple[str, ...]


class TreeNode:
    """One file or folder of the tree.

    Attributes:
        member: its tar header; None for a folder that layers name only as part of a path.
        layer: the archive that has the contents of `member`.
        text: the contents of a file that slurmkit adds.
        children: what is in a folder, by name.
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
        self.children: dict[str, TreeNode] = {}

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return self.member is None or self.member.isdir()

    def tar_entry(self, path: str) -> tuple[tarfile.TarInfo, IO[bytes] | None]:
        """Return its tar header, with its path in the tree and owned by root, and its contents."""
        header = tarfile.TarInfo(path)
        if self.member is None:
            header.type, header.mode = tarfile.DIRTYPE, 0o755
            return header, None
        # If the owner could not read or enter it, runtimes could neither unpack nor remove it.
        least = 0o700 if self.member.isdir() else 0o600
        # All files become root's: a set-user-ID bit would give its rights.
        header.mode = self.member.mode & 0o1777 | least
        # squashfs has 32-bit times; an archive may have any number, even infinity or NaN.
        time = self.member.mtime
        header.mtime = int(time) if 0 <= time < 1 << 32 else 0
        if not self.member.isreg():
            header.type, header.linkname = self.member.type, self.member.linkname
            return header, None
        header.size = self.member.size
        if self.text is not None or self.layer is None:
            return header, BytesIO(self.text or b"")
        return header, self.layer.extractfile(self.member)


class LayerTree:
    """The files of an image; layers are added from the lowest up."""

    def __init__(self) -> None:
        self._root = TreeNode()

    def add(self, layer: tarfile.TarFile) -> None:
        """Put a layer on top. Devices are left out: runtimes provide their own.

        Raises:
            ImageError: for a path with `..` in it, or a hard link to a missing file.
            tarfile.TarError: when the archive is damaged.
        """
        members = {_parts(member.name): member for member in layer}
        members.pop((), None)
        whiteouts = {parts for parts in members if parts[-1].startswith(_HIDES)}
        folders = {parts for parts, member in members.items() if member.isdir()} - whiteouts
        # A folder takes the place of a link below: nothing else of the layer follows that link.
        for parts in sorted(folders, key=len):
            self._put(parts, TreeNode(members[parts], layer))
        for parts in whiteouts:  # they apply to the layers below, wherever they stand
            self._hide(parts)
        for parts, member in members.items():
            if parts not in whiteouts:
                meant = _resolve_hard_link(member, members)
                if meant.isreg() or meant.isdir() or meant.issym() or meant.isfifo():
                    self._put(parts, TreeNode(meant, layer))

    def put_text(self, path: str, text: str, mode: int = 0o644) -> None:
        """Add a file with this text, for example `etc/environment`."""
        data = text.encode("utf-8", "surrogateescape")
        member = tarfile.TarInfo(path)
        member.size, member.mode = len(data), mode
        self._put(_parts(path), TreeNode(member, text=data))

    def put_folder(self, path: str) -> None:
        """Create a folder if it does not exist."""
        self._folder(_parts(path))

    @property
    def size(self) -> int:
        """Size of all files in bytes."""
        nodes = (node for _, node in self.walk())
        return sum(n.member.size for n in nodes if n.member is not None and n.member.isreg())

    def walk(self) -> Iterator[tuple[str, TreeNode]]:
        """Yield every path with its node, folders before their contents."""
        stack = [("", self._root)]
        while stack:
            path, node = stack.pop()
            if path:
                yield path, node
            inside = sorted(node.children.items(), reverse=True)
            stack += ((f"{path}/{name}" if path else name, child) for name, child in inside)

    def write(self, out: IO[bytes], report: Callable[[int], None]) -> None:
        """Write the tree as one tar archive; hard links become files, which squashfs deduplicates.

        Args:
            out: the stream to write to.
            report: called with the size of each piece in bytes.

        Raises:
            tarfile.TarError: when a layer is damaged.
        """
        with tarfile.open(
            fileobj=out, mode="w|", format=tarfile.GNU_FORMAT, errors="surrogateescape"
        ) as archive:
            for path, node in self.walk():
                header, data = node.tar_entry(path)
                counted = None if data is None else cast("IO[bytes]", _Counted(data, report))
                try:
                    archive.addfile(header, counted)
                except OSError as error:
                    if error.errno is not None:  # of the disk or the pipe
                        raise
                    raise tarfile.ReadError(f"{path}: {error}") from error

    def _hide(self, parts: _Path) -> None:
        folder = self._walk_to(parts[:-1], make=False)
        if folder is None:
            return
        if parts[-1] == _HIDES_ALL:
            folder.children.clear()
        else:
            folder.children.pop(parts[-1].removeprefix(_HIDES), None)

    def _put(self, parts: _Path, node: TreeNode) -> None:
        folder = self._folder(parts[:-1])
        before = folder.children.get(parts[-1])
        if before is not None and before.is_folder and node.is_folder:
            node.children = before.children
        folder.children[parts[-1]] = node

    def _folder(self, parts: _Path) -> TreeNode:
        found = self._walk_to(parts, make=True)
        if found is None:
            raise ImageError(f"the image has a path through too many links, {'/'.join(parts)!r}")
        return found

    def _walk_to(self, parts: _Path, *, make: bool) -> TreeNode | None:
        """Return the folder of a path; follow links, but only within the tree.

        Args:
            parts: the path.
            make: create missing folders. Otherwise a missing folder gives None.

        Returns:
            The folder; None also for a path through too many links.
        """
        left, done, hops = list(reversed(parts)), [self._root], 0
        while left:
            name = left.pop()
            if name == "..":  # from a link; the parent of the root is the root
                done = done[:-1] or done[:1]
                continue
            child = done[-1].children.get(name)
            if child is not None and child.member is not None and child.member.issym():
                hops += 1
                if hops > _MAX_LINKS:
                    return None
                done = done[:1] if child.member.linkname.startswith("/") else done
                left += reversed(_split(child.member.linkname))
                continue
            if child is None or not child.is_folder:
                if not make:
                    return None
                child = done[-1].children[name] = TreeNode()
            done.append(child)
        return done[-1]


class _Counted:
    """A file that reports how much of it was read."""

    def __init__(self, data: IO[bytes], report: Callable[[int], None]) -> None:
        self._data, self._report = data, report

    def read(self, size: int = -1) -> bytes:
        piece = self._data.read(size)
        self._report(len(piece))
        return piece


def _split(path: str) -> _Path:
    return tuple(part for part in path.split("/") if part not in ("", "."))


def _parts(path: str) -> _Path:
    parts = _split(path)
    if ".." in parts:
        raise ImageError(f"the image has a path with .. in it, {path!r}: it is not imported")
    return parts


def _resolve_hard_link(
    member: tarfile.TarInfo, members: dict[_Path, tarfile.TarInfo]
) -> tarfile.TarInfo:
    """Resolve a hard link to its file in the same layer; return anything else unchanged."""
    target: tarfile.TarInfo | None = member
    for _ in range(_MAX_LINKS):
        if target is None or not target.islnk():
            break
        target = members.get(_parts(target.linkname))
    if target is None or target.islnk():
        raise ImageError(
            f"the image is damaged: {member.name!r} is a hard link to {member.linkname!r}, which"
            " is not there"
        )
    return target
