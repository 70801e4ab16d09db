"""Checks offsets without records in the brokers' answers against the copies of a pair.

`copied_records` reads the objects of COMPLETE generations. `sink.kafka.fetch.empty_answers` decides whether an empty
answer is evidence at all; `sink.read.reader_context` joins both and decides whether a lane skips the offsets.
"""
