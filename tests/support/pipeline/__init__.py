"""A pipeline without brokers: stand-ins at its seams, scripted logs, and small parts of it for tests of one module."""
