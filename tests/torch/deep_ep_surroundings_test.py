#!/usr/bin/env python3
"""mep.deep_ep in programs with other defaults of PyTorch, and under the names of DeepEP's modules."""
import functools
import sys
import unittest

import deep_ep_elastic_test as elastic
import launch


def under_other_defaults(kind, names):
    """The class with calls that are made under other defaults of PyTorch than the program's; their hooks are not."""
    import torch

    def wrapped(call):
        @functools.wraps(call)
        def with_defaults(*given, **named):
            torch.set_default_dtype(torch.bfloat16)
            torch.set_default_device("meta")
            torch.use_deterministic_algorithms(True)
            try:
                with torch.inference_mode():
                    return call(*given, **named)
            finally:
                torch.use_deterministic_algorithms(False)
                torch.set_default_device(None)
                torch.set_default_dtype(torch.float32)
        return with_defaults
    return type(kind.__name__, (kind,), {name: wrapped(getattr(kind, name)) for name in names})


# --- In the ranks ------------------------------------------------------------------------------------------------

def rank_elastic():
    """Normal mode too, which it stands on."""
    import mep.deep_ep
    mep.deep_ep.ElasticBuffer = under_other_defaults(mep.deep_ep.ElasticBuffer, ("dispatch", "combine"))
    elastic.rank_layers(in_pytorch=True)


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
    def test_elastic_under_other_defaults(self):
        launch.run(__file__, "elastic", 2)

    def test_names_of_modules(self):
        launch.run(__file__, "names", 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["rank"]:
        globals()["rank_" + sys.argv[2]]()
    else:
        unittest.main()
