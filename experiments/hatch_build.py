"""The page of a distribution on a package index: its README with links that work there, and the project's URLs.

Both distributions are built with this file, so it lies in both sdists. Links of a README are relative, as a forge and an
editor follow them. ``SPARSUM_REPOSITORY_URL`` says where the repository is published, and they then lead to the files of the
release there. Without it nothing is known to link to: texts stay and links go.
"""

import os
import pathlib
import posixpath
import re
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Code first: what looks like a link in there is none.
_CODE_OR_LINK = re.compile(
    r"""
    ^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)
    | (?P<image>!?)\[(?P<text>(?:`[^`]*`|[^\[\]`])*)\]\((?P<target>[^()\s]+)\)
    | <(?P<tag>img|source|a)\s[^>]*?(?:src|srcset|href)="(?P<url>[^"]+)"[^>]*>
    | (?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)
    """,
    flags=re.DOTALL | re.MULTILINE | re.VERBOSE,
)
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:|#", flags=re.IGNORECASE)


def with_links(text: str, folder: str, repository: str, tag: str) -> str:
    """A README in Markdown whose relative links, seen from a folder of the repository, are absolute."""

    def replaced(match: re.Match[str]) -> str:
        target = match["target"] or match["url"]
        if target is None or _ELSEWHERE.match(target):
            return match[0]
        if not repository:
            return match["text"] or ""
        is_page = match["tag"] == "a" or match["image"] == ""
        path = posixpath.normpath(posixpath.join(folder, target))
        start, end = (index - match.start() for index in match.span("target" if match["target"] else "url"))
        return f"{match[0][:start]}{repository}/{'blob' if is_page else 'raw'}/{tag}/{path}{match[0][end:]}"

    return _CODE_OR_LINK.sub(replaced, text)


class IndexPage(MetadataHookInterface):
    """Sets the fields ``readme`` and ``urls``, the first from the file and the folder in the hook's configuration."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the fields, but not in an sdist, whose PKG-INFO has them."""
        if "readme" in metadata:
            return
        repository = os.environ.get("SPARSUM_REPOSITORY_URL", "").rstrip("/")
        tag = f"v{metadata['version']}"
        text = (pathlib.Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_links(text, self.config["folder"], repository, tag)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/{tag}/CHANGELOG.md",
            }
