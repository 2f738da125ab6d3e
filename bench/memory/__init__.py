"""How much memory and time spotsurfer itself takes."""
