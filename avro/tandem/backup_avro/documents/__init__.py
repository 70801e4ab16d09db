"""The stored documents and messages beside chains, as values and as bytes.

Checkpoints, pauses, releases, restore targets, requests for turns, outcomes of jobs, range offers, messages of the
coordination topic, and the layout of the files of the Java connector. `sink.store.chain` reads and writes the stored
ones, `controller.coordination` sends and receives the messages.
"""
