"""The live page: a typed prompt is answered with all heads. The one door to a server."""
