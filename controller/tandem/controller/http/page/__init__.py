"""The status page: one HTML document without external sources, made from the overview that `tandem status` shows."""
