"""Chaos: a real pair on a real broker and a real S3 server, hurt in every way there is, and judged after each round.

    facts, judge       pure: what was written, and whether a restore is right
    faults             pure: the seeded schedule of a round
    gates              TCP between the parts, to be cut, silenced, slowed, made deaf
    writers, follower  write without end, and read along, with confluent-kafka alone
    crew               writers and follower together, and how a campaign waits
    stage              servers, gates, topics, instances under supervision
    restoring          the newest state from S3 alone; by production's selection and decoding, and by `tandem restore`
    campaign           rounds: hurt, heal, wait, restore, judge, tell

Run it with `make chaos ROUNDS=n`; docs/quality/chaos.md explains what is checked.
"""
