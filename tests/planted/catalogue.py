"""All planted mistakes, in the order in which `make planted` tries them."""

from __future__ import annotations

from planted import (
    compacting,
    comparing,
    contents,
    coordinating,
    documenting,
    erasing,
    guarding,
    identity,
    overlooking,
    producing,
    reading,
    remembering,
    restoring,
    rewinding,
    securing,
    setting_aside,
    storing,
)
from planted.mistakes import MISTAKES as FIRST

MISTAKES = (
    *FIRST,
    *comparing.MISTAKES,
    *compacting.MISTAKES,
    *contents.MISTAKES,
    *coordinating.MISTAKES,
    *documenting.MISTAKES,
    *erasing.MISTAKES,
    *guarding.MISTAKES,
    *identity.MISTAKES,
    *overlooking.MISTAKES,
    *producing.MISTAKES,
    *reading.MISTAKES,
    *remembering.MISTAKES,
    *restoring.MISTAKES,
    *rewinding.MISTAKES,
    *securing.MISTAKES,
    *setting_aside.MISTAKES,
    *storing.MISTAKES,
)
