"""How much memory spotsurfer's own processes take."""
