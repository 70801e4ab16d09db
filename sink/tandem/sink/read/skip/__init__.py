"""What the copies of a pair say of offsets of which brokers send nothing.

`copied_records` reads the objects of COMPLETE generations. When an empty answer is evidence at all is decided in
`sink.kafka.fetch.empty_answers`; `sink.read.reader_context` joins both and decides whether a lane skips the offsets.
"""
