"""Look-ups in a partition's log besides fetching: its start and end, the leader epoch or the record at an offset."""
