"""spotsurfer: long jobs live on interruptible machines; the running program is frozen, moved and goes on bit for bit."""

__version__ = "0.2.0"
