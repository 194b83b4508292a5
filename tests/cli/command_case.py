"""What tests of the program's commands share: a folder of their own, files in it, and the numbers of a recording."""

import json
import os
import tempfile
import unittest


class CommandCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, content):
        """Writes bytes, text, or anything else as JSON. Returns the path."""
        if not isinstance(content, (bytes, str)):
            content = json.dumps(content)
        with open(self.path(name), "wb") as file:
            file.write(content if isinstance(content, bytes) else content.encode())
        return self.path(name)


def number(value):
    """Little-endian base 128, as recordings have all their numbers."""
    text = bytearray()
    while value >= 128:
        text.append(value & 127 | 128)
        value >>= 7
    return bytes(text + bytes([value]))
