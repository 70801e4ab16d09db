"""The status page: one HTML document without outside sources, made of the overview that `tandem status` shows."""
