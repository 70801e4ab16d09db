"""From Kafka to the object store: fetch, transcode, buffer, upload, commit.

`pipeline` is the loop of one generation. `kafka` fetches record batches, `transcode` turns them into Avro blocks,
`read` knows how far each partition is, `write` makes objects and chain entries of the blocks, `store` keeps them,
`encryption` has their keys; `process` is what all processes share. Which generation is read when is decided in
`controller`.
"""
