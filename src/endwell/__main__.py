"""`python -m endwell` is the command line."""

from endwell.cli.main import main

if __name__ == "__main__":
    main()
