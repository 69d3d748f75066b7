"""Write patches/README.md from the headers of the diffs: `python -m vllm_specx._compat.ledger [FOLDER]`."""

from __future__ import annotations

import sys
from pathlib import Path

FIELDS = ("Patch", "Target", "Why", "How", "Runtime", "Upstream", "Supported", "Remove when")

_INTRO = """\
# Patches

What vllm-specx changes in vLLM. Each change exists twice: as the diffs below, and as a runtime form that the
plug-in applies, when vLLM starts, to an installed vLLM that does not have it. With a diff applied the runtime
form stays out. To apply a diff, in the folder that contains `vllm/` (for a wheel: `site-packages`):

    patch -p1 < patches/vllm-X.Y/NAME.diff

Before anything is replaced at run time, its source is compared with the release that it was written against
(`vllm_specx/_compat/fingerprints.py`); a vLLM that differs is refused.

This page is generated from the headers of the diffs by `python -m vllm_specx._compat.ledger`.
"""


def read_header(diff: str) -> dict[str, str]:
    """The fields above the first diff line; indented lines continue a field.

    Raises ValueError when a field of FIELDS is missing, empty, unknown or out of order.
    """
    fields: dict[str, str] = {}
    key = ""
    for line in diff.partition("\ndiff --git ")[0].rstrip().splitlines():
        if line.startswith(" ") and key:
            fields[key] += " " + line.strip()
        else:
            key, _, value = line.partition(": ")
            fields[key] = value.strip()
    if tuple(fields) != FIELDS or not all(fields.values()):
        raise ValueError(f"a header has the fields {', '.join(FIELDS)}; found {', '.join(fields)}")
    return fields


def render(folder: Path) -> str:
    """The ledger of `folder`, which holds vllm-X.Y/*.diff. One patch has one text in all versions."""
    patches: dict[str, tuple[dict[str, str], list[str]]] = {}
    for path in sorted(folder.glob("vllm-*/*.diff")):
        header = read_header(path.read_text())
        supported = header.pop("Supported")
        known, versions = patches.setdefault(header["Patch"], (header, []))
        if known != header:
            raise ValueError(f"{path}: the header differs from that of another version")
        link = path.relative_to(folder).as_posix()
        versions.append(f"[{link}]({link}): {supported}")
    text = [_INTRO]
    for name, (header, versions) in patches.items():
        text.append(f"## {name}\n")
        text += [
            f"- **{field}**: {header[field]}" for field in FIELDS if field in header and field != "Patch"
        ]
        text += ["- **Supported**:", *(f"  - {version}" for version in versions), ""]
    return "\n".join(text)


if __name__ == "__main__":
    _folder = Path(sys.argv[1] if len(sys.argv) > 1 else "patches")
    (_folder / "README.md").write_text(render(_folder))
