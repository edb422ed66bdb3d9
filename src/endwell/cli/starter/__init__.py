"""The files of a starter project, as `endwell init` writes them."""
