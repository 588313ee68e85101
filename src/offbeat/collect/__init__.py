"""Collectors: environments and an acting policy in, chunks of rows out. Neither a backend nor Gymnasium is imported."""

from offbeat.collect.collector import Collector, CollectorReport, CollectorState
from offbeat.collect.context import CollectorContext
from offbeat.collect.in_process import InProcess
from offbeat.collect.ledger import ChunkLedger
from offbeat.collect.step import VectorStep, advance
from offbeat.collect.stepper import Stepper

__all__ = [
    "ChunkLedger",
    "Collector",
    "CollectorContext",
    "CollectorReport",
    "CollectorState",
    "InProcess",
    "Stepper",
    "VectorStep",
    "advance",
]
