"""The process of one instance: observe, decide, act, once a tick.

`loop` is the tick: `observe` puts together what is known, `execute` begins what was decided. `act` does the slow work
in threads, `pipelines` runs generations, `store_watch`, `message_watch` and `checkpoint_keeper` look at store and
messages, `wiring` and `start` bring the parts up from the configuration. What people see of it is made in `status`.
"""
