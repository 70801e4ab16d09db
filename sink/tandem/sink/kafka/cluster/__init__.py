"""What a cluster has: topics, their ids and configuration, consumer groups, by confluent-kafka.

`admin` asks, `topic_ids` tells an id from none, `guarded_topics` says which topics the pair guards. Records are not
read here.
"""
