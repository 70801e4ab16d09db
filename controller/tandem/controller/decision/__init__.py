"""What an instance does next, decided from plain values: no clock, no network, no thread.

`observation` is what one tick sees, `decide` turns it into a role, actions and a reason, `role_machine` has the only
transitions between roles, `spoilt_builds` how long the next build waits. `controller.instance` carries it out.
"""
