"""The container image that a job brings along as its root: resolved once, pulled and unpacked once a machine."""

REGISTRY_AUTH = ":registry_auth"  # how a job's containers-auth.json is called among its secrets; the job never sees it
