"""What every command shares: options, loading the app, output, logs, errors."""
