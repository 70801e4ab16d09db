"""The first reading of a log, newest range first.

`plan` decides which range comes next and which attempts count, `range_time_limit` how long reading one may take. The
ranges are read by this process (`local_ranges`), by worker processes of the machine (`worker_ranges`,
`worker_processes`) or by Spark (`spark_ranges`); `range_reader` reads one range for the latter two, `accept_ranges`
adds it to the generation.
"""
