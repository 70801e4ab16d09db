"""One record and the files that records lie in.

`current` and `version_1` encode and decode `AvroKafkaRecord`, `container` the Avro object container files around it,
`compression` their codecs, `envelope` and `chunk_cipher` their encryption. Nothing here knows chains or generations.
"""
