"""Topics of a cluster, their configuration, and its consumer groups, through confluent-kafka.

`admin` sends the requests, `admin_errors` turns their exceptions into Tandem's, `group_listing` lists groups of all
types over `kafka.wire`, `guarded_topics` selects the topics that the pair guards. Records are not read here.
"""
