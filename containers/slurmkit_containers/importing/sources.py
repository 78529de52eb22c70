"""The sources of `slurmkit image import`: which importer to use, and under which name.

enroot imports images of registries and daemons. Without enroot, only an image of a registry that
needs no password can be imported.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import msgspec

from slurmkit.errors import BadInput, ImageError
from slurmkit.spec.images import Image
from slurmkit_containers.cache import LOCAL_PREFIX, CachedImage, ImageCache, ImageOrigin
from slurmkit_containers.images import (
    canonical,
    catalogue_entry,
    image_at_mirror,
    is_local,
    resolve_image_name,
    short_name,
)
from slurmkit_containers.importing.archives import import_path, local_architecture
from slurmkit_containers.importing.importer import (
    CommandFailed,
    ReimportMode,
    check_room,
    import_once,
    run_child,
)
from slurmkit_containers.importing.registry import (
    HTTP_ADVICE,
    RemoteImage,
    ask_registry,
    import_public_image,
)
from slurmkit_containers.trust import (
    LINE_STAYS,
    ReportProgress,
    credentials_file,
    unsafe_credentials,
)

_ARCHIVE = re.compile(r"(.+?)\.(?:tar|tar\.gz|tgz|tar\.xz)")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}", re.ASCII)
_OTHER = "architecture doesn't match"  # a warning of enroot's src/docker.sh
# enroot's src/docker.sh and src/common.sh; after a refused password it prints nothing but [INFO].
_LOGIN = re.compile(r"\[INFO\] Authenticating with user: (\S+)")
_REFUSED = re.compile(r"returned error code: 40[13]\b")
_NO_TLS = re.compile(r"curl: \(35\)|wrong version number", re.IGNORECASE)
_PATIENCE = 60  # timeout in seconds of `enroot digest`


class ImportSource(msgspec.Struct, frozen=True):
    """An image to import, from a path or from a registry or Docker daemon.

    Attributes:
        reference: the name it will have, as `images.canonical` writes it.
        image: the image that the reference names.
        path: the archive or folder to import; None for a registry or daemon.
    """

    reference: str
    image: Image
    path: Path | None = None

    def import_into(
        self, cache: ImageCache, *, again: bool, report: ReportProgress
    ) -> tuple[CachedImage, bool]:
        """Import it into a cache; returns and raises as `import_once`.

        A path is imported every time, since its contents may have changed.
        """
        if self.path is not None:
            return import_once(cache, self.reference, self._make, again="always", report=report)
        how: ReimportMode = "refresh" if again else "missing"
        return import_once(cache, self.reference, self._make, again=how, report=report)

    def _make(self, file: Path, report: ReportProgress) -> ImageOrigin:
        if self.path is not None:
            return import_path(self.path, file, report)
        return import_image(self.image, file, report)


def parse_import_source(what: str, name: str | None) -> ImportSource:
    """Parse the arguments of `slurmkit image import`.

    Args:
        what: a reference, a name of the catalogue, or a path.
        name: the image's name instead of its own.

    Raises:
        BadInput: when `what` is none of these, or a file that needs no import.
    """
    if not what.startswith(("/", ".")) and not _ARCHIVE.fullmatch(what):
        image, _ = resolve_image_name(what)
        if image.is_file:
            raise BadInput(
                f"{what} is the file {image.name}, which needs no import: write"
                f" --container-image {what}"
            )
        if is_local(image):
            own = canonical(image).removeprefix(LOCAL_PREFIX)
            raise BadInput(
                f"{what} is in no registry; import it from a path: slurmkit image import PATH"
                f" --as {own}"
            )
        return ImportSource(canonical(_parse_own_name(name) if name else image), image)
    path = Path(what)
    if not path.exists():
        raise BadInput(f"{what} does not exist")
    if path.suffix in (".sqsh", ".squashfs", ".sqfs", ".sif"):
        raise BadInput(f"{what} needs no import: write --container-image {path.resolve()}")
    archive = _ARCHIVE.fullmatch(path.name)
    own_name = (archive[1] if archive else path.resolve().name).lower()
    image = _parse_own_name(name or own_name)
    return ImportSource(canonical(image), image, path.resolve())


def _parse_own_name(name: str) -> Image:
    if catalogue_entry(name) is not None:
        raise BadInput(f"{name} is a name of the catalogue; choose another: --as mine:1")
    try:
        image = Image.parse(name)
    except BadInput as error:
        raise BadInput(
            f"{name!r} cannot be an image's name; choose another: --as mine:1"
        ) from error
    local = is_local(image)
    if image.kind != "registry" or image.digest or image.user or (image.registry and not local):
        raise BadInput(f"{name!r} cannot be an image's name; choose another: --as mine:1")
    return image if local else msgspec.structs.replace(image, registry="local")


def import_image(image: Image, file: Path, report: ReportProgress) -> ImageOrigin:
    """Write the squashfs file of an image. enroot reads credentials from its own file.

    Without enroot, only an image of a registry that needs no password can be imported.

    Args:
        image: an image of a registry, fetched from its mirror if it has one, or of a daemon.
        file: the file to write.
        report: called with the progress.

    Raises:
        ImageError: when it fails, needs enroot, or has a password that would be run as code.
        BadConfig: when a mirror is not a registry.
    """
    asked = image_at_mirror(image)
    source = short_name(canonical(asked)) if asked.kind == "registry" else asked.enroot
    if shutil.which("enroot") is None:
        made = _without_enroot(asked, file, report)
        return msgspec.structs.replace(made, source=source)
    if asked.kind == "registry" and (wrong := unsafe_credentials()) is not None:
        raise ImageError(wrong)
    public = _ask_registry(asked, file.parent, report)
    digest = public.digest if public else _digest(asked)
    if digest is not None:  # fetch exactly the image whose digest is recorded
        asked = msgspec.structs.replace(asked, digest=digest)
    # Without --arch, enroot takes any architecture and does not compare it with the machine's.
    arch = ["--arch", platform.machine()] if asked.kind == "registry" else []
    argv = ["enroot", "import", *arch, "--output", str(file), asked.enroot]
    try:
        output = run_child(argv, file, report)
    except CommandFailed as error:
        why = _why_enroot_failed(error, asked)
        if public is None:
            raise ImageError(why) from error
        made = _instead_of_enroot(asked, file, report, why)
        return msgspec.structs.replace(made, source=source)
    if _OTHER in output:
        raise ImageError(
            f"image {asked} is for another architecture than this machine, {local_architecture()}"
        )
    return ImageOrigin(source=source, digest=digest, architecture=local_architecture())


def _instead_of_enroot(image: Image, file: Path, report: ReportProgress, why: str) -> ImageOrigin:
    """Write the squashfs file of an image that the registry gives to anybody.

    enroot needs user namespaces, which a login node may not allow, and cannot read each registry.

    Args:
        image: the image.
        file: the file to write.
        report: called with the progress.
        why: why enroot failed.
    """
    report(f"{why}; slurmkit fetches the image itself", LINE_STAYS, None)
    file.unlink(missing_ok=True)
    try:
        return import_public_image(image, file, report)
    except ImageError as error:
        raise ImageError(f"{why}; slurmkit itself could not fetch the image: {error}") from error


def _why_enroot_failed(error: CommandFailed, image: Image) -> str:
    """Return enroot's error, or what it means where enroot does not say it."""
    host = image.registry or "registry-1.docker.io"
    lines = error.output.splitlines()
    informed = [line for line in lines if line.startswith("[INFO] ")]
    silent = len(informed) == len(lines) and _LOGIN.search(" ".join(informed[-2:]))
    if silent or _REFUSED.search(error.output):
        user = _LOGIN.search(error.output)
        who = user[1] if user else image.user or "<anonymous>"
        return (
            f"{host} does not give image {image} to user {who}: it wants a password, or refuses the"
            f" one it got; write it into {credentials_file()}, as a line: machine"
            f" {host.partition(':')[0]} login USER password PASSWORD"
        )
    if _NO_TLS.search(error.output):
        return f"{host} does not speak https ({error}); {HTTP_ADVICE}"
    return str(error)


def _without_enroot(image: Image, file: Path, report: ReportProgress) -> ImageOrigin:
    if image.kind == "registry" and image.user is None:
        return import_public_image(image, file, report)
    raise ImageError(
        f"image {image} needs enroot, which is not on the PATH here: import it on a machine that"
        " has enroot, or from a file of docker save: slurmkit image import ./FILE.tar"
    )


def _ask_registry(image: Image, folder: Path, report: ReportProgress) -> RemoteImage | None:
    """Return the image as its registry describes it to anybody; None if it does not.

    Raises:
        ImageError: when the image does not exist, or cannot fit.
    """
    if image.kind != "registry":
        return None
    report("asking the registry", 0, None)
    found = ask_registry(image, local_architecture(), report)
    if found is not None:
        check_room(folder, found.size)
    return found


def _digest(image: Image) -> str | None:
    """Return the digest of an image that is not given to anybody, from `enroot digest`.

    None if enroot is older than release 4, which has no such command.
    """
    if image.kind != "registry" or image.digest is not None:
        return image.digest
    argv = ["enroot", "digest", image.enroot]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return None
    digest = done.stdout.decode("ascii", "replace").strip()
    return digest if done.returncode == 0 and _DIGEST.fullmatch(digest) else None
