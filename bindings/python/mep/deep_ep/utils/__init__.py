"""Names that programs import from deep_ep.utils."""
from .event import EventHandle, EventOverlap

__all__ = ["EventHandle", "EventOverlap"]
