"""The process of one instance: observe, decide, act, once a tick.

`loop` is the tick: `observe` builds the observation, `execute` starts the decided actions. `act` is the slow work,
which `task_board` runs in threads, `pipelines` runs generations, `message_watch` watches the messages, `wiring` and
`start` build the parts from the configuration. `watch` reads the store and the cluster, `status` makes the views for
people.
"""
