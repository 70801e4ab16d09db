"""The process of one instance: observe, decide, act, once a tick.

`loop` is the tick: `observe` builds the observation, `execute` starts the decided actions. `act` does the slow work in
threads, `pipelines` runs generations, `message_watch` watches the messages, `wiring` and `start` build the parts from
the configuration. `watch` reads the store and the cluster, `status` makes the views for people.
"""
