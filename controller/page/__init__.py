"""The status page: one HTML document without sources of its own, made of the picture that `tandem status` shows.

Here live what is on it (`content`, `timeline`: pure), how it is drawn (`render`, the template, the styles), and where
an instance has it from (`source`).
"""
