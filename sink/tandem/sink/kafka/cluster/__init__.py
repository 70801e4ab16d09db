"""Topics of a cluster, their ids and configuration, and its consumer groups, through confluent-kafka.

`admin` sends the requests, `guarded_topics` selects the topics that the pair guards. Records are not read here.
"""
