"""The target cluster before the load: what is there, what is refused, topics created, settings for loading."""
