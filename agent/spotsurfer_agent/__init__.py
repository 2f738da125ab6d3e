"""The part of spotsurfer that runs on the instance. Knows neither the controller nor a cloud SDK."""

__version__ = "0.2.0"
