"""Servers of others that speak the protocols of stores: versitygw (S3), Azurite (Azure), fake-gcs-server (Google).

`install` builds them from their registries into a cache outside the tree, the first time in minutes. `gcs_front` stands
before fake-gcs-server and names what that one lacks.
"""
