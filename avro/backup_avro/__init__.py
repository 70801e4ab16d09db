"""The stored formats of Tandem: records, coordination messages, chain entries and the rules that bind them.

Nothing here opens a socket, reads a clock or touches a file system: plain values in, plain values out.
"""
