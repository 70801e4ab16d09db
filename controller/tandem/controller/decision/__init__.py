"""The decision on an instance's next role and actions, from plain values: no clock, no network, no thread.

`observation` is the input of one tick, `decide` returns a role, actions and a reason, `liveness` whether the peer is
alive, `role_machine` has the only transitions between roles, `spoilt_builds` the wait before the next build.
`loss_detector` decides whether a topic seems to have lost records by accident, `loss_sign_format` is what it then says.
`controller.instance` carries decisions out.
"""
