"""Record batches (magic 2) to Avro block bodies and back. `reference` is plain Python and the oracle of every twin."""
