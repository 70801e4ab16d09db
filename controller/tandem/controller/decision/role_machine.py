"""The state machine of an instance. The table is all there is: no automatic transitions, no effects in callbacks."""

from __future__ import annotations

from transitions import Machine

from tandem.controller.decision.observation import Role

TABLE: tuple[tuple[str, Role, Role], ...] = (
    ("claim", Role.PASSIVE, Role.CATCH_UP),
    ("complete", Role.CATCH_UP, Role.ACTIVE),
    ("passivate", Role.ACTIVE, Role.PASSIVE),
    ("abandon", Role.CATCH_UP, Role.PASSIVE),
    ("resume", Role.PASSIVE, Role.ACTIVE),
    ("rebuild", Role.ACTIVE, Role.CATCH_UP),
    ("halt", Role.PASSIVE, Role.HALTED),
    ("halt", Role.CATCH_UP, Role.HALTED),
    ("halt", Role.ACTIVE, Role.HALTED),
)


class RoleMachine:
    """Holds the role. `move_to` fires the one trigger that leads to a role; TABLE holds all transitions."""

    __slots__ = ("_machine",)

    def __init__(self) -> None:
        self._machine = Machine(
            states=Role,
            initial=Role.PASSIVE,
            transitions=[list(row) for row in TABLE],
            auto_transitions=False,
        )

    @property
    def role(self) -> Role:
        """The present role."""
        return Role(self._machine.state)

    def move_to(self, role: Role) -> str | None:
        """Go to `role`; return the trigger that was fired, None if it is the present one. ValueError off the table."""
        if role is self.role:
            return None
        for trigger in self._machine.get_triggers(self.role):
            if self._machine.get_transitions(trigger, self.role, role):
                self._machine.trigger(trigger)
                return str(trigger)
        raise ValueError(f"no transition leads from {self.role.value} to {role.value}")
