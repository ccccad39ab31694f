"""python -m mep.torch: builds the binding, if that has not been done, and says where it lies."""
import mep.torch

print(f"mep.torch: the backend \"mep\" is ready, binding {mep.torch._binding.__file__}")
