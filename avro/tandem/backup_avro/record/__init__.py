"""One record, and the files that store records.

`current` and `version_1` encode and decode `AvroKafkaRecord`, `container` the Avro object container files around it,
`compression` their codecs, `envelope` and `chunk_cipher` their encryption. No module here knows chains or generations.
"""
