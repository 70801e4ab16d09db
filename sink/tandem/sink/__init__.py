"""From Kafka to the object store: fetch, transcode, buffer, upload, commit.

`pipeline` is the loop of one generation, `commit_draft` collects what its next commit names. `kafka` fetches record
batches, `transcode` turns them into Avro blocks, `read` tracks the progress of each partition, `write` turns the blocks
into objects and chain entries, `store` stores them, `encryption` has their keys, `aws` the sessions of AWS's SDK;
`process` is shared by all processes. `controller` decides which generation is read when.
"""
