"""The documentation as a site: MkDocs with the theme Material, in an environment of its own."""

from __future__ import annotations

from console import ROOT, die, note, run, step
from packages import python_with

FOLDER = ROOT / "build" / "docs"
PACKAGES = ["mkdocs==1.6.1", "mkdocs-material>=9.6,<10", "mkdocstrings[python]>=1,<2"]


def docs(arguments: list[str]) -> int:
    if arguments not in ([], ["--serve"]):
        die("./dev docs takes nothing, or --serve")
    program = python_with(FOLDER, PACKAGES, "import material, mkdocstrings_handlers.python", "MkDocs")
    # The theme's authors print an advertisement unless told not to.
    quiet = {"NO_MKDOCS_2_WARNING": "true", "DISABLE_MKDOCS_2_WARNING": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    mkdocs = [program, "-m", "mkdocs"]
    if arguments:
        return run(*mkdocs, "serve", "--strict", env=quiet)
    step("Building build/site")
    status = run(*mkdocs, "build", "--strict", env=quiet)
    if status == 0:
        note("open build/site/index.html; ./dev docs --serve shows changes as they are made")
    return status
