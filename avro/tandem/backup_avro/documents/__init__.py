"""The stored documents and messages beside chains, as values and as bytes.

Checkpoints, pauses, releases, restore targets, requests for turns, outcomes of jobs, offers of ranges, messages of
the coordination topic, and the layout of the files of the Java connector. `sink.store.chain` puts and gets the stored
ones, `controller.coordination` sends and receives the messages.
"""
