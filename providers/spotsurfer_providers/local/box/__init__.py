"""A box: namespaces, disk, link, metadata service, and the process that keeps it."""
