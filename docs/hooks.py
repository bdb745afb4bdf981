"""Let pages link to files outside docs/, such as ../results/tables/table1.md, on GitHub and on the site alike.

A file that is linked to is added to the site under its path in the repository: Markdown as a page, anything else as it
is. docs/ is the site's root, so links to these files, and theirs to docs/, are rewritten. A link to the directory of a
run becomes one to its summary.json.
"""

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath
from typing import Any

from mkdocs.structure.files import File, Files, InclusionLevel

LINK = re.compile(r"(?<=\]\()((?:\.\./|docs/)[^)#\s]+)")


def site_path(link: str, page: str, root: Path) -> str:
    """The path in the site of what `page`, itself a path in the site, links to."""
    is_outside = (root / page).is_file() and not (root / "docs" / page).is_file()
    target = normpath(join(dirname(page if is_outside else f"docs/{page}"), link))
    return (f"{target}/summary.json" if (root / target).is_dir() else target).removeprefix("docs/")


def on_files(files: Files, config: Any) -> Files:
    root = Path(config.docs_dir).parent
    pages = list(files.documentation_pages())
    for page in pages:  # grows by the pages that are found
        for link in LINK.findall(page.content_string):
            path = site_path(link, page.src_uri, root)
            if files.get_file_from_path(path) is None and (root / path).is_file():
                file = File.generated(config, path, abs_src_path=str(root / path), inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(file)
                pages += [file] if file.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    root, own = Path(config.docs_dir).parent, page.file.src_uri
    return LINK.sub(lambda link: relpath(site_path(link[1], own, root), dirname(own) or "."), markdown)
