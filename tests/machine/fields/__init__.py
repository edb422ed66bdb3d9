"""What the machine writes, field by field: these tests notice every change of a field, intended ones too.

`full` is a task with a value in every column.
"""
