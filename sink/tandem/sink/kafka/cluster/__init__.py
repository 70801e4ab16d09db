"""Topics of a cluster, their ids and configuration, and its consumer groups, through confluent-kafka.

`admin` sends the requests, `topic_ids` converts and checks topic ids, `guarded_topics` selects the topics that the pair
guards. Records are not read here.
"""
