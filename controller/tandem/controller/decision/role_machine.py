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
    """Holds the role. `move_to` fires the one trigger that leads there, so that every change is in the table."""

    def __init__(self) -> None:
        self.state: str  # set by the machine
        self._machine = Machine(
            model=self,
            states=[role.value for role in Role],
            initial=Role.PASSIVE.value,
            transitions=[
                {"trigger": trigger, "source": source.value, "dest": dest.value} for trigger, source, dest in TABLE
            ],
            auto_transitions=False,
        )

    @property
    def role(self) -> Role:
        """The present role."""
        return Role(self.state)

    def move_to(self, role: Role) -> str | None:
        """Go to `role`; return the trigger that was fired, None if it is the present one. ValueError off the table."""
        if role is self.role:
            return None
        for trigger, source, dest in TABLE:
            if source is self.role and dest is role:
                self._machine.dispatch(trigger)
                return trigger
        raise ValueError(f"no transition leads from {self.role.value} to {role.value}")
