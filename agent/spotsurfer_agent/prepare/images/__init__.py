"""The container image that a job brings along as its root: resolved once, pulled and unpacked once a machine."""
