"""An image made from the Python that runs assay: the interpreter, its standard library, and the libraries they need.

No registry is asked and no Dockerfile is run: the engine imports one archive, made once for each interpreter and kept.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

from assay.errors import SandboxError
from assay_sandboxes.interpreter import installed

# The engine's client has no types of its own.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

REPOSITORY = "assay-python"
RECIPE = 4
"""Raised when what goes into the image changes."""
LEFT_OUT = {
    "site-packages",
    "dist-packages",
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "turtledemo",
    "ensurepip",
    "lib2to3",
}
_LIBRARY = re.compile(r"(?:=>\s*)?(/\S+)\s+\(0x")


def ensure(client: Any) -> tuple[str, str]:
    """Name of the image, made if the engine has none yet, and the path of its interpreter."""
    interpreter = installed()
    digest = hashlib.sha256(f"{RECIPE} {sys.version} {interpreter.executable}".encode()).hexdigest()[:16]
    name = f"{REPOSITORY}:{digest}"
    from docker import errors as docker_errors

    try:
        client.images.get(name)
    except docker_errors.ImageNotFound:
        client.api.import_image_from_data(archive(), repository=REPOSITORY, tag=digest)
        try:
            client.images.get(name)
        except docker_errors.ImageNotFound:
            raise SandboxError(f"sandbox 'docker': the engine did not take the image {name}") from None
    return name, os.fspath(interpreter.executable)


def archive() -> bytes:
    """The image's files as a tar archive."""
    interpreter = installed()
    standard = interpreter.site_packages.parent
    files: dict[Path, None] = {interpreter.executable: None}
    for folder, names, found in os.walk(standard):
        names[:] = sorted(name for name in names if name not in LEFT_OUT and not name.startswith("config-"))
        files.update((Path(folder, name), None) for name in sorted(found) if not name.endswith((".a", ".exe")))
    binaries = [interpreter.executable, *(path for path in files if path.suffix == ".so")]
    files.update((path, None) for path in _libraries(binaries))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("dev", "proc", "sys", "etc", "work"):
            _folder(tar, name)
        _link(tar, "tmp", "work")
        if interpreter.executable != Path("/usr/bin/python3"):
            _link(tar, "usr/bin/python3", os.fspath(interpreter.executable))
        linked = [folder for folder in ("/bin", "/lib", "/lib64", "/sbin") if Path(folder).is_symlink()]
        for folder in linked:
            _link(tar, folder.lstrip("/"), os.readlink(folder))
        for path in files:
            # At its own path for whoever names it, with folders that are links on this machine written as links.
            place = path
            for folder in linked:
                if path.is_relative_to(folder):
                    place = Path(os.path.realpath(folder)) / path.relative_to(folder)
            info = tar.gettarinfo(os.path.realpath(path), os.fspath(place).lstrip("/"))
            info.uid = info.gid = 0
            info.uname = info.gname = "root"
            info.mode |= 0o444
            with open(path, "rb") as file:
                tar.addfile(info, file)
    return buffer.getvalue()


def _folder(tar: tarfile.TarFile, name: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.mode = tarfile.DIRTYPE, 0o755
    tar.addfile(info)


def _link(tar: tarfile.TarFile, name: str, target: str) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    tar.addfile(info)


def _libraries(binaries: list[Path]) -> list[Path]:
    """Shared libraries that `binaries` load, as the dynamic linker names them."""
    ldd = shutil.which("ldd")
    if ldd is None:
        raise SandboxError("sandbox 'docker': no ldd to find the interpreter's libraries; name an `image` instead")
    answer = subprocess.run([ldd, *map(os.fspath, binaries)], capture_output=True, text=True, check=False)  # noqa: S603
    return sorted({Path(match[1]) for match in _LIBRARY.finditer(answer.stdout)})
