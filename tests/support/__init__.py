"""What tests of several rooms share: worlds, worker processes, and the fixtures of both stores."""
