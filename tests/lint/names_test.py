#!/usr/bin/env python3
"""Shows that the check of names can fail: in comments and pages, of files, members and functions."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from made_tree import made_tree  # noqa: E402
import names  # noqa: E402

GOOD = {
    "src/core/base.hpp": "namespace mep {\nclass Base {\n  void stop();\n};\n}\n",
    "src/core/ring.hpp": "namespace mep {\nclass Ring : public Base {\n  void turn(int);\n  // gone\n};\n}\n",
}


class Names(unittest.TestCase):
    def findings(self, text, name="src/core/a.cpp"):
        with made_tree({**GOOD, name: text}) as root:
            return [(line, finding) for file, line, finding in names.check_names(root) if file == name]

    def test_what_is_there(self):
        for text in ("core/ring.hpp", "ring.hpp", "Ring::turn", "mep::Ring::turn()", "Ring::stop()", "turn()", "ring.turn()", "std::gone",
                     "fe80::1", "NAME.cpp", "src/*.cpp"):
            self.assertEqual(self.findings(f"// See {text}.\n"), [], text)

    def test_what_is_gone(self):
        for text, finding in (("wheel.hpp", "no file is named wheel.hpp"), ("base/ring.hpp", "no file is named base/ring.hpp"),
                              ("Wheel::turn", "there is no class Wheel"), ("Ring::spin", "Ring has no spin"),
                              ("Base::turn", "Base has no turn"), ("Ring::gone", "Ring has no gone"),
                              ("spin()", "there is no function spin()"), ("ring->spin()", "there is no function spin()")):
            self.assertEqual(self.findings(f"int a;\n// See {text}.\n"), [(2, finding)])
            self.assertEqual(self.findings(f"It is\n`{text}`.\n", "docs/design/" + "x.md"), [(2, finding)])

    def test_places_that_are_not_looked_at(self):
        self.assertEqual(self.findings('int wheel() { return "spin()"; }\n'), [])
        self.assertEqual(self.findings("`wheel.hpp`, `spin()`\n", "docs/measurements/" + "x.md"), [])
        self.assertEqual(self.findings("`wheel.py`\n", "docs/guide/" + "x.md"), [])
        self.assertEqual(self.findings("`spin()`\n", "docs/guide/" + "x.md"), [(1, "there is no function spin()")])


if __name__ == "__main__":
    unittest.main()
