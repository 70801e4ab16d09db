"""Questions about a log beside fetching it: where it ends, which leader epoch a place has, which record lies there."""
