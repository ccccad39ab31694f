#!/usr/bin/env python3
"""mep.deep_ep under the names of DeepEP's modules."""
import sys
import unittest

import launch


# --- In the ranks ------------------------------------------------------------------------------------------------

def rank_names():
    """Megatron and others import these; where one is missing they believe that DeepEP is."""
    import mep.deep_ep
    mep.deep_ep.install()
    import deep_ep
    import deep_ep.utils.event
    from deep_ep import Buffer
    from deep_ep.buffer import Buffer as same
    from deep_ep.utils import EventHandle, EventOverlap
    assert Buffer is same is mep.deep_ep.Buffer
    for names in (mep.deep_ep, deep_ep.utils.event):
        assert names.EventHandle is EventHandle and names.EventOverlap is EventOverlap
    mep.deep_ep.install()  # once more


# --- The tests ---------------------------------------------------------------------------------------------------

class SurroundingsTest(unittest.TestCase):
    def test_names_of_modules(self):
        launch.run(__file__, "names", 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
