#!/usr/bin/env python3
"""Shows that check_types.py can fail: a small tree that is right, and one fault in each place that it looks at."""

import importlib.util
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from made_tree import made_tree  # noqa: E402
import check_types  # noqa: E402

PYRIGHT = '[tool.pyright]\nextraPaths = ["bindings/python"]\n'
PAGE, EXAMPLE, MODULE = "README.md", "examples/x.py", "bindings/python/mep/__init__.py"
GOOD = {
    "pyproject.toml": '[tool.mypy]\nstrict = true\nmypy_path = "bindings/python"\nfiles = ["bindings/python/mep", "examples"]\n',
    MODULE: "def size() -> int:\n    return 1\n",
    EXAMPLE: "import mep\n\ntext: str = str(mep.size())\n",
    PAGE: "# X\n\n```python\nimport mep\n\nmep.size()\nunknown.name(1)\n```\n\n```c\nint x;\n```\n",
}


class CheckTypes(unittest.TestCase):
    def test_blocks_keep_their_lines(self):
        self.assertEqual(list(check_types.blocks(GOOD[PAGE])), [(3, "import mep\n\nmep.size()\nunknown.name(1)\n")])

    def failures(self, tree):
        with made_tree(tree) as root, tempfile.TemporaryDirectory() as cache:
            return check_types.check(pathlib.Path(root), cache, with_pyright=False)

    @unittest.skipIf(shutil.which("pyright") is None, "no pyright")
    def test_pyright(self):
        for wrong, line in (("mep.size()", None), ("mep.size(1)", 6)):
            with self.subTest(wrong=wrong), made_tree({**GOOD, PAGE: GOOD[PAGE].replace("mep.size()", wrong),
                                                       "pyproject.toml": PYRIGHT}) as root, \
                    tempfile.TemporaryDirectory() as folder:
                root = pathlib.Path(root)
                said = check_types.pyright(root, check_types.write_blocks(root, pathlib.Path(folder)))
                self.assertEqual([] if line is None else [f"{PAGE}:{line}"],
                                 [":".join(each.split(":")[:2]) for each in said.splitlines()], said)

    @unittest.skipIf(importlib.util.find_spec("mypy") is None, "no mypy")
    def test_faults(self):
        self.assertEqual(self.failures(GOOD), "")
        for file, right, wrong, line in ((MODULE, "return 1", "return ''", 2), (EXAMPLE, "str(mep.size())", "mep.size()", 3),
                                         (PAGE, "mep.size()", "mep.size(1)", 6)):
            with self.subTest(file=file):
                said = self.failures({**GOOD, file: GOOD[file].replace(right, wrong)})
                self.assertEqual(said.count("error:"), 1, said)
                self.assertIn(f"{file}:{line}: error:", said)


if __name__ == "__main__":
    unittest.main()
