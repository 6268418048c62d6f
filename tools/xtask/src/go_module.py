"""Packs the files of a folder below a name: python -c … FOLDER NAME ARCHIVE."""

import sys
import zipfile
from pathlib import Path

folder, name, archive = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
    # Equal files make an equal archive, of which Go compares hashes: their order and times are fixed.
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        entry = zipfile.ZipInfo(f"{name}/{path.relative_to(folder).as_posix()}")
        entry.compress_type = zipfile.ZIP_DEFLATED
        packed.writestr(entry, path.read_bytes())
