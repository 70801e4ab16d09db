"""`spark.read.format("kafka_backup")`, and `tandem export`, which is built on it.

`options` checks what a notebook says, `plan` cuts it into tasks, `pushed_filters` narrows it by Spark's filters.
"""
