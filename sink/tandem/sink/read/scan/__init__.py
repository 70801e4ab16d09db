"""The first reading of a log, newest range first.

`scan_lane` gives each partition to one of three back-ends: this process (`local_ranges`), worker processes of the
machine (`worker_ranges`, `worker_processes`) or Spark (`spark_ranges`). `progress.next_scan_range` decides which
offsets come next and which attempts count, `range_time_limit` how long reading may take, `range_tasks` describes
ranges, `range_reader` reads one in another process, `accept_ranges` has the rules by which it counts.
"""
