"""`tandem restore vanished`: brings keys that vanished from a compacted log back into the live topic.

`find` compares the copy that was kept for them with the newer one, and reads their records; `live_log` reads which keys
the topic has; `write_back` writes in transactions. It needs no Spark: only records of keys that vanished are written,
and their keys fit into memory. Which copy is kept, and why, is decided in `sink.write.vanished_keys_check`.
"""
