"""What mkdocs cannot do by itself: pages whose sources lie outside of docs/, and links to files of the tree.

Notebooks are shown as `make notebooks` left them in build/notebooks, with their pictures. A notebook that did not run
since its source changed is shown with the picture that is kept of it (docs/pictures/gallery.py), and a note.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jupytext
import nbformat
from mkdocs.structure.files import File
from nbconvert import MarkdownExporter

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
MOVED = {
    "ARCHITECTURE.md": "architecture.md",
    "HACKING.md": "hacking.md",
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks/programs.md",
    "benchmarks/RESULTS.md": "benchmarks/results.md",
}
"""Documents of the tree that are pages of the site too."""
LINK = re.compile(
    r"^ *```.*?^ *```$|`[^`\n]*`|\[((?:[^\[\]`]|`[^`]*`)*+)\]\(([^)#:\s]+)(#[^)\s]*)?\)", re.MULTILINE | re.DOTALL
)
"""Code, in which nothing is a link, or a link to a file. Each text matches in one way: with two, an open bracket in
front of a table of code took minutes."""
BEHIND = re.compile(r"design/|benchmarks/|architecture|hacking|coverage")
"""Pages that search lists behind the others."""
PLOT = re.compile(r"(!\[[^\]]*\]\((\S+))\.svg\)")
"""A plot of a page."""
NOT_RUN = "!!! note\n    One picture of this notebook is shown. `make notebooks docs` runs it first, for all.\n\n"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents and notebooks."""
    for source, page in MOVED.items():
        if page != "index.md":
            files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    for source in sorted((ROOT / "notebooks").glob("*.py")):
        for name, content in notebook(source).items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    return files


def notebook(source: Path) -> dict[str, str | bytes]:
    """The page of a notebook and its pictures, by name."""
    done = ROOT / "build/notebooks" / f"{source.stem}.ipynb"
    fresh = done.exists() and done.stat().st_mtime >= source.stat().st_mtime
    cells = nbformat.read(done, as_version=4) if fresh else jupytext.read(source)
    cells.metadata.setdefault("language_info", {"name": "python"})  # where nothing ran, nothing has set it
    body, found = MarkdownExporter().from_notebook_node(cells, {"unique_key": source.stem})
    title, _, rest = body.strip().partition("\n")
    kept = f"../pictures/{source.stem}.png"
    shown = f"![What it draws]({kept})\n\n" if (ROOT / "docs/notebooks" / kept).resolve().exists() else ""
    front = "" if fresh else NOT_RUN + shown
    return {f"{source.stem}.md": f"{title}\n\n{front}{rest}\n", **found.get("outputs", {})}


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links to files of the tree lead to their page of the site, where they have one; else they are text.

    A link to a file that is not there is left as it is, and mkdocs warns. Search lists pages for users before notes on
    designs and what is for developers.
    """
    if BEHIND.match(page.file.src_uri):
        page.meta["search"] = {"boost": 0.2}
    own = {name: source for source, name in MOVED.items() if name != "index.md"}
    at = Path(own.get(page.file.src_uri, f"docs/{page.file.src_uri}")).parent
    here = Path(page.file.src_uri).parent

    def relinked(match: re.Match[str]) -> str:
        text, target, anchor = match.groups("")
        if not target:
            return match[0]  # code
        path = Path(os.path.normpath(at / target))
        name = MOVED.get(str(path)) or str(path).removeprefix("docs/")
        if path.parts[0] == "notebooks":
            name = str(path.with_suffix(".md"))
        if files.get_file_from_path(name):
            return f"[{text}]({os.path.relpath(name, here)}{anchor})"
        is_page = path.parts[0] == "docs" and not (ROOT / path).is_dir()
        return match[0] if is_page or not (ROOT / path).exists() else text

    def for_each_width(match: re.Match[str]) -> str:
        narrow = os.path.normpath(here / f"{match[2]}-narrow.svg")
        both = f"{match[1]}.svg#only-wide){match[1]}-narrow.svg#only-narrow)"  # docs/style.css shows one of them
        return both if files.get_file_from_path(narrow) else match[0]

    return PLOT.sub(for_each_width, LINK.sub(relinked, markdown))
