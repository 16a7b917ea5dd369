"""Codecs of foreign formats of logs, a package each. They know bytes, and nothing of where objects are stored."""
