"""`spark.read.format("kafka_backup")`, and `tandem export`, which is built on it.

`state.read_options` checks a notebook's options, `plan` cuts the selected records into tasks, `pushed_filters` narrows
the tasks by Spark's filters, `key_history` finds every record of one key.
"""
