"""The doctor: checks everything an installation needs, and says how to mend what is wrong."""
