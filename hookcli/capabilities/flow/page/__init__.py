"""The picture of a page: its scripts, of which picture.js is the first, and its style."""
