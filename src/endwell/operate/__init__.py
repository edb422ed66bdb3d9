"""What command line, API and page all call: questions and actions, over the store alone."""
