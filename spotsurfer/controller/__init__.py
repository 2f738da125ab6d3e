"""The controller process around the pure core: it observes, decides, applies and records."""
