"""Trees that tests of the lint make up."""

import contextlib
import pathlib
import tempfile


@contextlib.contextmanager
def made_tree(files):
    """A folder with these files, {name: text}; None: the file is missing."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            if text is None:
                continue
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        yield root
