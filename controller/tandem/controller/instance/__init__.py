"""The process of one instance: observe, decide, act, once a tick.

`loop` is the tick: `observe` builds the observation, `execute` starts the decided actions. `act` does the slow work
in threads, `pipelines` runs generations, `store_watch`, `message_watch` and `checkpoint_keeper` watch the store and
the messages, `wiring` and `start` build the parts from the configuration. `status` makes the views for people.
"""
