"""Packs a folder as a wheel: python -c … FOLDER INFO WHEEL, INFO being its .dist-info folder."""

import base64
import hashlib
import sys
import zipfile
from pathlib import Path

tree, info, wheel = map(Path, sys.argv[1:])
record, lines = info / "RECORD", []
with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
    # Equal files make an equal wheel: their order and times are fixed. The list comes last.
    for path in [*sorted(p for p in tree.rglob("*") if p.is_file()), record]:
        name = path.relative_to(tree).as_posix()
        if path == record:
            data = "".join([*lines, f"{name},,\n"]).encode()
        else:
            data = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            lines.append(f"{name},sha256={digest},{len(data)}\n")
        entry = zipfile.ZipInfo(name)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100755 if "/scripts/" in name or ".so" in name else 0o100644) << 16
        archive.writestr(entry, data)
