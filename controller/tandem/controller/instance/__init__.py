"""The process of one instance: observe, decide, act, once a tick.

`loop` is the tick, `act` does the slow work in threads, `pipelines` runs generations, `store_watch` and
`checkpoint_keeper` look at the store, `wiring` and `start` bring the parts up from the configuration.
"""
