"""The functions of ``cuda.tile``, one module a family. Each takes and gives tiles of every block in the group."""
