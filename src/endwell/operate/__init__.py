"""Questions and actions over the store alone: the command line, an API and a page call the same ones."""
