"""Reads HTML pages in tests."""

import json
from html.parser import HTMLParser


class Parsed(HTMLParser):
    """The elements of an HTML page, and the texts of its scripts by id."""

    def __init__(self, document):
        super().__init__(convert_charrefs=True)
        self.elements, self.scripts, self._inside = [], {}, None
        self.feed(document)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("id", "") if tag == "script" else None

    def handle_endtag(self, tag):
        self._inside = None

    def handle_data(self, data):
        if self._inside is not None:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    def count(self, tag):
        return sum(name == tag for name, _ in self.elements)

    @property
    def data(self):
        return json.loads(self.scripts["data"])
